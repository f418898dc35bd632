"""Policies read requests and steps and cannot write them: the attempt is the plugin's failure."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tokenmill.core.contract.policy import RequestView, StepView
from tokenmill.core.contract.providers.deciders import decode_first
from tokenmill.core.engine.request import Request
from tokenmill.core.engine.step import Step
from tokenmill.core.outputs import FinishReason
from tokenmill.core.requests.sampling_params import SamplingParams

from ..engines import Bench
from ..hook_stats import stats_of

REQUEST_FIELDS = [name for name in vars(RequestView) if not name.startswith("_")]
STEP_FIELDS = [name for name in vars(StepView) if not name.startswith("_")]


def serve(schedule: Callable[[Any], None]) -> Bench:
    bench = Bench(num_blocks=64, schedule=schedule)
    for i in range(3):
        bench.add([i, i + 1, i + 2], 9)
    bench.run()
    return bench


def check_answers_are_whole(bench: Bench) -> None:
    bench.check_tokens()
    assert set(bench.reasons.values()) == {FinishReason.LENGTH}
    assert {len(tokens) for tokens in bench.tokens.values()} == {9}


@pytest.mark.parametrize("write", [setattr, object.__setattr__])
@pytest.mark.parametrize("name", [*REQUEST_FIELDS, "token_ids", "status", "_request"])
def test_a_policy_that_writes_a_request_fails_and_the_answers_are_whole(
    name: str, write: Callable[..., None]
) -> None:
    def schedule(step: Any) -> None:
        decode_first(step)
        for request in (*step.running, *step.waiting):
            write(request, name, 3)

    bench = serve(schedule)
    check_answers_are_whole(bench)
    stats = stats_of(bench.plugins, "schedule")
    assert (stats.plugin, stats.failures) == ("FunctionPlugin", 3)
    bench.core.check()


@pytest.mark.parametrize("write", [setattr, object.__setattr__])
@pytest.mark.parametrize("name", [*STEP_FIELDS, "grants", "_step"])
def test_a_policy_that_writes_a_step_fails_and_the_answers_are_whole(
    name: str, write: Callable[..., None]
) -> None:
    def schedule(step: Any) -> None:
        decode_first(step)
        write(step, name, 10**6)

    bench = serve(schedule)
    check_answers_are_whole(bench)
    assert stats_of(bench.plugins, "schedule").failures == 3


def test_a_view_has_all_that_the_contract_promises_and_always_the_values_of_the_moment() -> None:
    seen: list[dict[str, object]] = []

    def schedule(step: StepView) -> None:
        for view in (*step.running, *step.waiting):
            request = bench.requests[view.request_id]
            for name in REQUEST_FIELDS:
                assert getattr(view, name) == getattr(request, name)
            seen.append({name: getattr(view, name) for name in REQUEST_FIELDS})
        assert {name: getattr(step, name) for name in STEP_FIELDS}
        decode_first(step)

    bench = Bench(schedule=schedule)
    bench.add([1, 2, 3], 4)
    bench.run()
    assert not stats_of(bench.plugins, "schedule").failures
    assert [view["num_tokens"] for view in seen] == [3, 4, 5, 6]


def test_a_request_is_the_same_object_in_every_step_and_among_the_candidates() -> None:
    seen: dict[str, set[int]] = {}

    def schedule(step: StepView) -> None:
        for request in (*step.running, *step.waiting):
            seen.setdefault(request.request_id, set()).add(id(request))
        decode_first(step)

    bench = Bench(num_blocks=10, enable_prefix_caching=False, schedule=schedule)
    original = bench.plugins.preempt

    def preempt(step: Any, needy: Any, candidates: Any) -> Any:
        for request in (needy, *(candidate.request for candidate in candidates)):
            seen[request.request_id].add(id(request))
        assert step.running and step.num_granted < 4
        return original(step, needy, candidates)

    bench.plugins.preempt = preempt  # type: ignore[method-assign]
    for i in range(4):
        bench.add(range(i, i + 6), 20)
    bench.run()
    assert bench.core.total_preemptions
    assert [len(ids) for ids in seen.values()] == [1] * 4


@contextmanager
def no_collector() -> Iterator[list[object]]:
    """What only the garbage collector could have freed."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    found: list[object] = []
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_ended_requests_and_steps_do_not_wait_for_the_garbage_collector() -> None:
    bench = Bench()
    with no_collector() as found:
        for i in range(3):
            bench.add([i, i + 1], 4)
        bench.run()
        bench.requests.clear()
    assert not [thing for thing in found if isinstance(thing, Request | Step)]


def test_the_sampling_parameters_that_a_proposer_sees_cannot_be_changed() -> None:
    given = {1: 2.0}
    params = SamplingParams(logit_bias=given, stop_token_ids=(7,))
    bias: Any = params.logit_bias
    for change in (
        lambda: bias.update({1: 100.0}),
        lambda: bias.__setitem__(1, 100.0),
        lambda: bias.pop(1),
        lambda: setattr(params, "max_tokens", 1),
    ):
        with pytest.raises((TypeError, AttributeError)):
            change()
    given[1] = 100.0
    assert copy.deepcopy(params) == params.with_changes(seed=None)
    assert params.logit_bias == {1: 2.0}
