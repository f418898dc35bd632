"""The suite for scheduling policies: orders of the waiting requests."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import cast

import pytest

from ...core.contract.policy import RequestView, SchedulingPolicy
from .engine import checks as checks
from .engine.bench import EngineBench
from .engine.workload import AMPLE, SHAPES, STARVED, EngineShape, random_job, random_jobs
from .reporting import report_growth, report_time

_KIND = "scheduling_policy"
_every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


class SchedulingPolicyConformance:
    """Subclass it as Test..., with a fixture `scheduling_policy` that returns one or a function
    making one."""

    starvation_bound = 300
    """Turns for which a request may wait while others are served; a turn is 0.05 s of the engine's
    clock. All requests have the same priority then."""

    def test_keys_are_tuples_of_numbers(self, scheduling_policy: object) -> None:
        """Keys can be compared, and NaN is never among them: with it there is no order."""
        for request, key, _ in _asked_twice(scheduling_policy):
            assert isinstance(key, tuple) and all(map(_is_number, key)), (
                f"a key is a tuple of numbers, got {key!r} for {request.request_id}"
            )

    def test_the_same_request_has_the_same_key(self, scheduling_policy: object) -> None:
        """A key depends on the request and the time, not on how often it was asked for."""
        for request, first, second in _asked_twice(scheduling_policy):
            assert repr(first) == repr(second), (
                f"{request.request_id} had the key {first} and then, at the same time, {second}"
            )

    def test_priority_counts_if_it_is_used(self, scheduling_policy: object) -> None:
        """With `uses_priority` a lower priority goes first; else such requests are refused."""
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
    def test_it_orders_every_queue_itself(
        self, scheduling_policy: object, shape: EngineShape
    ) -> None:
        """It never raises in an engine."""
        checks.check_decides_itself(_KIND, scheduling_policy, shape, _KIND)

    def test_nobody_starves(self, scheduling_policy: object) -> None:
        """No request waits longer than the bound, however many others come."""
        checks.check_nobody_starves(_KIND, scheduling_policy, self.starvation_bound)

    @_every_shape
    def test_tokens_are_exact(self, scheduling_policy: object, shape: EngineShape) -> None:
        """Every request gets the tokens that it would have got alone."""
        checks.check_tokens(_KIND, scheduling_policy, shape)

    @pytest.mark.parametrize("shape", (AMPLE, STARVED), ids=str)
    def test_it_is_deterministic(self, scheduling_policy: object, shape: EngineShape) -> None:
        """The same requests at the same times lead to the same plans."""
        checks.check_determinism(_KIND, scheduling_policy, shape)

    def test_memory_growth_is_reported(
        self, scheduling_policy: object, request: pytest.FixtureRequest
    ) -> None:
        """Whether it keeps more and more while it works; a finding, no failure."""
        report_growth(request, checks.describe_memory_growth(_KIND, scheduling_policy))

    @pytest.mark.parametrize("num_requests", (256, 2048))
    def test_plan_time_is_reported(
        self, scheduling_policy: object, num_requests: int, request: pytest.FixtureRequest
    ) -> None:
        """How long a step takes to decide; reported, not judged."""
        seconds = checks.measure_plan_time(_KIND, scheduling_policy, num_requests)
        report_time(request, f"plan() with {num_requests} requests", seconds)


def _asked_twice(given: object) -> Iterator[tuple[RequestView, object, object]]:
    """Requests with two answers to the same question, as they arrive and after they have waited.

    What raises is left out: that is the business of `test_it_orders_every_queue_itself`.
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
