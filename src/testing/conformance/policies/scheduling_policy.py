"""The suite for scheduling policies: orders of the waiting requests."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import cast

import pytest

from ....core.contract.policy import RequestView, SchedulingPolicy
from ..engine import checks
from ..engine.bench import EngineBench
from ..engine.workload import AMPLE, SHAPES, STARVED, EngineShape, random_job, random_jobs
from ..reporting import Report, report_growth, report_time
from ..suites import suite

_KIND = "scheduling_policy"
_every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def check_keys_are_tuples_of_numbers(scheduling_policy: object) -> None:
    """Keys are tuples of numbers without NaN, so that they can be ordered."""
    for request, key, _ in _asked_twice(scheduling_policy):
        assert isinstance(key, tuple) and all(map(_is_number, key)), (
            f"a key must be a tuple of numbers, got {key!r} for {request.request_id}"
        )


def check_the_same_request_has_the_same_key(scheduling_policy: object) -> None:
    """A key depends on the request and the time, not on the number of calls."""
    for request, first, second in _asked_twice(scheduling_policy):
        assert repr(first) == repr(second), (
            f"at the same time {request.request_id} has two keys: {first} and {second}"
        )


def check_priority_counts_if_it_is_used(scheduling_policy: object) -> None:
    """A policy with `uses_priority` serves a lower priority number first.

    Without it, the engine refuses requests with a priority.
    """
    bench = EngineBench(_KIND, scheduling_policy, AMPLE)
    policy = cast(SchedulingPolicy, bench.provider)
    if policy.uses_priority:
        job = random_job(random.Random(1), 5, 5)
        urgent, other = bench.add(job, priority=-1), bench.add(job, priority=1)
        keys = policy.key(urgent.view, bench.now), policy.key(other.view, bench.now)
        assert keys[0] < keys[1], (
            f"uses_priority is True, but priority -1 has the key {keys[0]} and 1 has {keys[1]}"
        )


@_every_shape
def check_it_orders_every_queue_itself(scheduling_policy: object, shape: EngineShape) -> None:
    """The policy never raises in an engine, so the engine never orders a queue itself."""
    checks.check_decides_itself(_KIND, scheduling_policy, shape, _KIND)


def check_nobody_starves(scheduling_policy: object, bound: int = checks.STARVATION_BOUND) -> None:
    """No request waits longer than `bound` turns, however many others arrive."""
    checks.check_nobody_starves(_KIND, scheduling_policy, bound)


@_every_shape
def check_tokens_are_exact(scheduling_policy: object, shape: EngineShape) -> None:
    """Every request gets the tokens that it would get alone."""
    checks.check_tokens(_KIND, scheduling_policy, shape)


@pytest.mark.parametrize("shape", (AMPLE, STARVED), ids=str)
def check_it_is_deterministic(scheduling_policy: object, shape: EngineShape) -> None:
    """The same requests at the same times lead to the same plans."""
    checks.check_determinism(_KIND, scheduling_policy, shape)


def check_memory_growth_is_reported(scheduling_policy: object, report: Report) -> None:
    """Report whether the policy's memory grows while it works. Growth is no failure."""
    report_growth(report, checks.describe_memory_growth(_KIND, scheduling_policy))


@pytest.mark.parametrize("num_requests", (256, 2048))
def check_plan_time_is_reported(
    scheduling_policy: object, num_requests: int, report: Report
) -> None:
    """Report how long the planning of a step takes. There is no limit."""
    seconds = checks.measure_plan_time(_KIND, scheduling_policy, num_requests)
    report_time(report, f"plan() with {num_requests} requests", seconds)


@suite
class SchedulingPolicyConformance:
    """The suite for a scheduling policy.

    Subclass it as Test..., with a fixture `scheduling_policy` that returns a policy, or a function
    that makes one.
    """

    starvation_bound = checks.STARVATION_BOUND
    """Maximum number of turns that a request may wait while others are served."""

    @pytest.fixture
    def bound(self) -> int:
        return self.starvation_bound


def _asked_twice(given: object) -> Iterator[tuple[RequestView, object, object]]:
    """Requests, each with two keys for the same time: at arrival, and after it has waited.

    Calls that raise are left out: `test_it_orders_every_queue_itself` reports them.
    """
    bench = EngineBench(_KIND, given, AMPLE)
    policy = cast(SchedulingPolicy, bench.provider)
    for job in random_jobs(num_jobs=24):
        request = bench.add(job).view
        for now in (bench.now, bench.now + 0.5, bench.now + 600):
            try:
                keys = policy.key(request, now), policy.key(request, now)
            except Exception:
                continue
            yield request, *keys


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)
