"""The suite for schedulers, and for wrappers around `schedule`."""

from __future__ import annotations

import pytest

from ..engine import checks
from ..engine.workload import AMPLE, SHAPES, STARVED, STARVED_TWO, EngineShape
from ..reporting import report_growth, report_time

_KIND = "scheduler"
_every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


class SchedulerConformance:
    """The suite for a scheduler, or a wrapper around `schedule`.

    Subclass it as Test..., with a fixture `scheduler` that returns a scheduler, or a function that
    makes one. An object with `@hookimpl(wrapper=True) def schedule` is tested around the default
    scheduler.
    """

    starvation_bound = 300
    """Maximum number of turns that a request may wait while others are served. A turn is 0.05 s of
    the engine's clock. The engine itself prefers a request that has waited for 1000 steps."""

    @_every_shape
    def test_no_plan_exceeds_the_limits(self, scheduler: object, shape: EngineShape) -> None:
        """No step exceeds the token budget or the sequence limit."""
        checks.check_limits(_KIND, scheduler, shape)

    @_every_shape
    def test_it_decides_every_step_itself(self, scheduler: object, shape: EngineShape) -> None:
        """The scheduler never raises, and never returns an empty plan if a request could run."""
        checks.check_decides_itself(_KIND, scheduler, shape, "schedule")

    @_every_shape
    def test_every_request_finishes(self, scheduler: object, shape: EngineShape) -> None:
        """All requests of random workloads end, also the last one, which runs alone."""
        checks.check_everyone_finishes(_KIND, scheduler, shape)

    def test_nobody_starves(self, scheduler: object) -> None:
        """No request waits longer than `starvation_bound`, however many others arrive."""
        checks.check_nobody_starves(_KIND, scheduler, self.starvation_bound)

    @_every_shape
    def test_tokens_are_exact(self, scheduler: object, shape: EngineShape) -> None:
        """Every request gets the tokens that it would get alone."""
        checks.check_tokens(_KIND, scheduler, shape)

    @pytest.mark.parametrize("shape", (STARVED, STARVED_TWO), ids=str)
    def test_aborts_give_back_every_block(self, scheduler: object, shape: EngineShape) -> None:
        """Aborted requests free all their blocks, whenever they are aborted."""
        checks.check_aborts(_KIND, scheduler, shape)

    @pytest.mark.parametrize("shape", (AMPLE, STARVED), ids=str)
    def test_it_is_deterministic(self, scheduler: object, shape: EngineShape) -> None:
        """The same requests at the same times lead to the same plans."""
        checks.check_determinism(_KIND, scheduler, shape)

    def test_memory_growth_is_reported(
        self, scheduler: object, request: pytest.FixtureRequest
    ) -> None:
        """Report whether the scheduler's memory grows while it works. Growth is no failure."""
        report_growth(request, checks.describe_memory_growth(_KIND, scheduler))

    @pytest.mark.parametrize("num_requests", (256, 2048))
    def test_plan_time_is_reported(
        self, scheduler: object, num_requests: int, request: pytest.FixtureRequest
    ) -> None:
        """Report how long the planning of a step takes. There is no limit."""
        seconds = checks.measure_plan_time(_KIND, scheduler, num_requests)
        report_time(request, f"plan() with {num_requests} requests", seconds)
