"""The suite for draft length policies, which choose how many tokens to draft for each request."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import cast

import pytest

from ....core.contract.providers.draft_length import DraftedStep, DraftLengthPolicy, DraftOutcome
from ....core.contract.providers.speculation import SpeculationLimits
from ....core.engine.request import Request
from ....core.members import IS_DETERMINISTIC
from ....core.requests.sampling_params import SamplingParams
from ..engine import speculating as engine
from ..engine.checks import compare_plans
from ..engine.workload import EngineShape
from ..hosting import fresh
from ..kept_memory import check_nothing_is_kept
from ..reporting import Report, report_time
from ..suites import suite

_KIND = "draft_length"
_METHODS = tuple(f"{_KIND}.{method}" for method in ("choose", "observe", "forget"))
_LIMITS = tuple(
    SpeculationLimits(num_speculative_tokens=number, needs_lookahead=needs_lookahead)
    for number in (1, 8)
    for needs_lookahead in (False, True)
)
_every_shape = pytest.mark.parametrize("shape", engine.SHAPES, ids=str)


@_every_shape
def check_an_engine_takes_its_answers(draft_length: object, shape: EngineShape) -> None:
    """The policy gives one length within the limits for each request, and never raises."""
    failures = engine.serve(draft_length, shape, kind=_KIND).failures.describe(*_METHODS)
    assert not failures, f"the engine drafted nothing because of:\n{failures}"


@pytest.mark.parametrize("limits", _LIMITS, ids=str)
def check_odd_steps_do_no_harm(draft_length: object, limits: SpeculationLimits) -> None:
    """The policy survives a clock that is set back, a stopped process and unknown requests."""
    policy, rng = cast(DraftLengthPolicy, fresh(draft_length)), random.Random(1)
    for number in range(300):
        requests = [_request(f"request-{number // 10}-{i}") for i in range(rng.randint(0, 4))]
        lengths = policy.choose(requests, limits)
        assert len(lengths) == len(requests), (
            f"{len(requests)} requests were given, the answer is {lengths!r}"
        )
        assert all(0 <= length <= limits.num_speculative_tokens for length in lengths), (
            f"lengths are from 0 to {limits.num_speculative_tokens}, got {lengths!r}"
        )
        policy.observe(_step(requests, lengths, rng, odd=True))
        policy.forget(f"request-{number // 10 - 1}-{rng.randint(0, 4)}")


def check_nothing_is_kept_of_ended_requests(draft_length: object) -> None:
    """A policy frees its data about a request when it ends: a server runs for months."""
    policy, rng = cast(DraftLengthPolicy, fresh(draft_length)), random.Random(1)

    def live(name: str, _: int) -> None:
        for _ in range(10):
            _one_step(policy, [_request(name)], rng)
        policy.forget(name)

    check_nothing_is_kept(policy, live)


@_every_shape
def check_it_is_deterministic(draft_length: object, shape: EngineShape) -> None:
    """The same requests at the same times lead to the same plans."""
    if not IS_DETERMINISTIC.of(fresh(draft_length)):
        pytest.skip("is_deterministic is False")
    compare_plans(*(engine.serve(draft_length, shape, kind=_KIND).plans for _ in range(2)))


def check_time_per_step_is_reported(draft_length: object, report: Report) -> None:
    """Report how long `choose` and `observe` take for 32 requests. There is no limit."""
    policy, rng = cast(DraftLengthPolicy, fresh(draft_length)), random.Random(1)
    requests = [_request(f"request-{i}") for i in range(32)]
    seconds = [_one_step(policy, requests, rng) for _ in range(200)]
    report_time(report, "choose() and observe()", statistics.median(seconds))


@suite
class DraftLengthConformance:
    """The suite for a draft length policy.

    Subclass it as Test..., with a fixture `draft_length` that returns a policy, or a function that
    makes one. A policy with `is_deterministic = False` may choose at random: the test that compares
    two runs is skipped.
    """


def _one_step(policy: DraftLengthPolicy, requests: Sequence[Request], rng: random.Random) -> float:
    """Call `choose` and `observe` once; returns the seconds that they took."""
    started = time.perf_counter()
    lengths = policy.choose(requests, _LIMITS[-2])
    chosen = time.perf_counter()
    step = _step(requests, lengths, rng)
    resumed = time.perf_counter()
    policy.observe(step)
    return chosen - started + time.perf_counter() - resumed


def _step(
    requests: Sequence[Request], lengths: Sequence[int], rng: random.Random, *, odd: bool = False
) -> DraftedStep:
    """A step that verified drafts of these lengths and asked for new drafts of these lengths."""
    asked = [(r.engine_id, n) for r, n in zip(requests, lengths, strict=True) if n]
    outcomes = [_outcome(engine_id, length, rng) for engine_id, length in asked]
    num_drafts = sum(outcome.num_draft_tokens for outcome in outcomes)
    if odd:
        outcomes.append(_outcome("a stranger", 1, rng))
    return DraftedStep(
        num_requests=max(1, len(requests)),
        num_tokens=max(1, len(requests)) + num_drafts,
        is_decode=len(requests) > 0,
        seconds=rng.choice([0.01, 0.012, 0.0, -5.0, 1000.0]) if odd else rng.uniform(0.01, 0.012),
        proposal_seconds=0.0001 * len(asked),
        was_held_back=num_drafts > 0,
        draft_token_budget=rng.choice([0, 16]),
        outcomes=outcomes,
    )


def _outcome(engine_id: str, length: int, rng: random.Random) -> DraftOutcome:
    num_draft_tokens = rng.randint(0, length)
    return DraftOutcome(
        engine_id=engine_id,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=rng.randint(0, num_draft_tokens),
        max_draft_tokens=length,
        num_proposed_tokens=rng.randint(0, length),
    )


def _request(name: str) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=(1, 2, 3),
        sampling_params=SamplingParams(),
        max_tokens=100,
        arrival_time=0.0,
        seed=0,
    )
