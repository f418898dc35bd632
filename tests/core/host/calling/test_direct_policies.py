"""A draft length policy that fails costs drafts, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.core import kinds
from tokenmill.core.contract.events import PluginFailed
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.providers.draft_length import DraftedStep
from tokenmill.core.contract.providers.speculation import SpeculationLimits
from tokenmill.core.contract.registry import Registry
from tokenmill.testing.simulated.drafting import DraftingSettings

from ...engines import Bench


class Policy:
    """Drafts as many tokens as allowed, and keeps every outcome."""

    def __init__(self) -> None:
        self.steps: list[DraftedStep] = []
        self.live: set[str] = set()
        self.forgotten: list[str] = []

    def choose(self, requests: Any, limits: SpeculationLimits) -> Any:
        self.live.update(request.engine_id for request in requests)
        return [limits.num_speculative_tokens] * len(requests)

    def observe(self, step: DraftedStep) -> None:
        self.steps.append(step)
        assert {outcome.engine_id for outcome in step.outcomes} <= self.live

    def forget(self, engine_id: str) -> None:
        self.live.remove(engine_id)
        self.forgotten.append(engine_id)


class Offering:
    """Offers one policy, and watches failures."""

    TOKENMILL_API = (1, 1)

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.failures: list[PluginFailed] = []

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(kinds.DRAFT_LENGTH, "mine", lambda: self.policy)

    @hookimpl
    def on_plugin_failed(self, event: PluginFailed) -> None:
        self.failures.append(event)


def make_bench(policy: Policy, **options: Any) -> tuple[Bench, list[PluginFailed]]:
    plugin = Offering(policy)
    drafting = DraftingSettings(
        limits=SpeculationLimits(num_speculative_tokens=4), draft_length="mine"
    )
    return Bench(drafting=drafting, plugins=[plugin], **options), plugin.failures


def num_drafted(bench: Bench) -> int:
    return sum(grant.num_draft_tokens for plan in bench.plans for grant in plan.grants)


class Raising(Policy):
    def choose(self, requests: Any, limits: SpeculationLimits) -> Any:
        super().choose(requests, limits)
        raise ValueError("planted")


class Answering(Policy):
    """Answers what it is given, whatever it is asked."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    def choose(self, requests: Any, limits: SpeculationLimits) -> Any:
        super().choose(requests, limits)
        return self.answer


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (Raising(), "ValueError: planted"),
        (Answering(None), "must return one length for each of 1 requests, got None"),
        (Answering([1, 2]), "must return one length for each of 1 requests, got [1, 2]"),
        (Answering([5]), "must return lengths from 0 to 4, got 5"),
        (Answering([-1]), "must return lengths from 0 to 4, got -1"),
        (Answering([True]), "must return lengths from 0 to 4, got True"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_policy_that_fails_three_times_in_a_row_is_out_and_nothing_is_drafted(
    policy: Policy, error: str
) -> None:
    bench, failures = make_bench(policy)
    bench.add([1, 2, 3], 10)
    bench.run()
    bench.check_tokens()
    assert num_drafted(bench) == 0
    assert [(f.hook, f.action) for f in failures] == [("draft_length.choose", "fallback")] * 3
    assert error in failures[0].error
    taken_out = {info.name: info for info in bench.plugins.plugins()}["Offering"]
    assert taken_out.state == "failed"


def test_one_failure_costs_the_drafts_of_one_step() -> None:
    class Once(Policy):
        def choose(self, requests: Any, limits: SpeculationLimits) -> Any:
            if len(self.steps) in (3, 14, 15, 26):
                raise ValueError("planted")
            return super().choose(requests, limits)

    bench, failures = make_bench(Once())
    bench.add([1, 2, 3], 60)
    bench.run()
    bench.check_tokens()
    assert len(failures) == 4
    asked = [plan.grants[0].max_draft_tokens for plan in bench.plans[:28]]
    assert [step for step, number in enumerate(asked) if not number] == [3, 14, 15, 26]


@pytest.mark.parametrize("method", ["observe", "forget"])
def test_failures_to_learn_or_to_forget_count_each_on_their_own(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("planted")

    policy = Policy()
    monkeypatch.setattr(policy, method, fail)
    bench, failures = make_bench(policy)
    for number in range(5):
        bench.add([number, 2, 3], 10)
    bench.run()
    bench.check_tokens()
    assert len(failures) == 3
    assert num_drafted(bench) > 0


@pytest.mark.parametrize("max_inflight", [1, 2])
def test_every_request_is_forgotten_once_and_after_its_last_outcome(max_inflight: int) -> None:
    policy = Policy()
    bench, failures = make_bench(policy, max_inflight=max_inflight, num_blocks=64)
    for number in range(6):
        bench.add([number, 2, 3], 8)
    bench.add([7, 8, 9], 100)
    for _ in range(8):
        bench.step()
    bench.core.abort("6", bench.now)
    bench.run()
    bench.add([1, 2, 3], 3)
    bench.run()
    bench.check_tokens()
    assert failures == [], failures
    assert sorted(policy.forgotten) == sorted(bench.requests)


def test_a_step_says_what_was_asked_found_verified_and_accepted() -> None:
    policy = Policy()
    bench, _ = make_bench(policy)
    bench.add([1, 2, 3], 12)
    bench.run()
    prompt, first, *_ = policy.steps
    assert not prompt.is_decode and prompt.num_tokens == 3
    assert first.is_decode and first.num_requests == 1
    [asked], [verified] = prompt.outcomes, first.outcomes
    assert (asked.num_draft_tokens, asked.max_draft_tokens) == (0, 4)
    assert verified.num_draft_tokens == asked.num_proposed_tokens == first.num_tokens - 1
    accepted = sum(o.num_accepted_tokens for s in policy.steps for o in s.outcomes)
    assert accepted == bench.requests["0"].num_accepted_tokens > 0
