"""The suite for schedulers, and for wrappers around `schedule`."""

from __future__ import annotations

import pytest

from ..engine import checks
from ..engine.workload import AMPLE, SHAPES, STARVED, STARVED_TWO, EngineShape
from ..reporting import Report, report_growth, report_time
from ..suites import suite

_KIND = "scheduler"
_every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@_every_shape
def check_no_plan_exceeds_the_limits(scheduler: object, shape: EngineShape) -> None:
    """No step exceeds the token budget or the sequence limit."""
    checks.check_limits(_KIND, scheduler, shape)


@_every_shape
def check_it_decides_every_step_itself(scheduler: object, shape: EngineShape) -> None:
    """The scheduler never raises, and never returns an empty plan if a request could run."""
    checks.check_decides_itself(_KIND, scheduler, shape, "schedule")


@_every_shape
def check_every_request_finishes(scheduler: object, shape: EngineShape) -> None:
    """All requests of random workloads end, also the last one, which runs alone."""
    checks.check_everyone_finishes(_KIND, scheduler, shape)


def check_nobody_starves(scheduler: object, bound: int = checks.STARVATION_BOUND) -> None:
    """No request waits longer than `bound` turns, however many others arrive."""
    checks.check_nobody_starves(_KIND, scheduler, bound)


@_every_shape
def check_tokens_are_exact(scheduler: object, shape: EngineShape) -> None:
    """Every request gets the tokens that it would get alone."""
    checks.check_tokens(_KIND, scheduler, shape)


@pytest.mark.parametrize("shape", (STARVED, STARVED_TWO), ids=str)
def check_aborts_give_back_every_block(scheduler: object, shape: EngineShape) -> None:
    """Aborted requests free all their blocks, whenever they are aborted."""
    checks.check_aborts(_KIND, scheduler, shape)


@pytest.mark.parametrize("shape", (AMPLE, STARVED), ids=str)
def check_it_is_deterministic(scheduler: object, shape: EngineShape) -> None:
    """The same requests at the same times lead to the same plans."""
    checks.check_determinism(_KIND, scheduler, shape)


def check_decodes_all_is_true(scheduler: object) -> None:
    """With `decodes_all`, requests that all decode are all scheduled, if none waits."""
    checks.check_decodes_all(_KIND, scheduler, AMPLE)


def check_memory_growth_is_reported(scheduler: object, report: Report) -> None:
    """Report whether the scheduler's memory grows while it works. Growth is no failure."""
    report_growth(report, checks.describe_memory_growth(_KIND, scheduler))


@pytest.mark.parametrize("num_requests", (256, 2048))
def check_plan_time_is_reported(scheduler: object, num_requests: int, report: Report) -> None:
    """Report how long the planning of a step takes. There is no limit."""
    seconds = checks.measure_plan_time(_KIND, scheduler, num_requests)
    report_time(report, f"plan() with {num_requests} requests", seconds)


@suite
class SchedulerConformance:
    """The suite for a scheduler, or a wrapper around `schedule`.

    Subclass it as Test..., with a fixture `scheduler` that returns a scheduler, or a function that
    makes one. An object with `@hookimpl(wrapper=True) def schedule` is tested around the default
    scheduler.
    """

    starvation_bound = checks.STARVATION_BOUND
    """Maximum number of turns that a request may wait while others are served."""

    @pytest.fixture
    def bound(self) -> int:
        return self.starvation_bound
