"""The capacity of a setting: the highest request rate within the limits, in virtual time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ..core.config import EngineConfig
from ..core.errors import TokenmillError
from ..planning.outcome import Outcome
from ..planning.step_time import StepTimes
from ..planning.virtual_run import VirtualRun
from .limits import Limits
from .space import Settings
from .traffic import Traffic

PRECISION = 1.01
"""The search ends when the rates between which the highest one lies differ by this factor."""
HIGHER, LOWER = 4.0, 1 / 256
"""The highest and the lowest rate that is tried, as parts of the throughput without limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The highest request rate of a setting that keeps the limits."""

    rate: float = 0.0
    """Requests per second that arrive; infinity: all at once. 0: no rate keeps the limits."""
    goodput: float = 0.0
    """Requests per second that are completed at this rate."""
    outcome: Outcome | None = None
    error: str = ""
    """Why the setting cannot be used."""


@dataclass(slots=True)
class Planner:
    """Finds capacities. It starts at an infinite request rate, as vLLM's `auto_tune.sh` does."""

    traffic: Traffic
    base: EngineConfig
    times: StepTimes
    limits: Limits
    num_runs: int = 0
    """Virtual runs so far."""
    _known: dict[tuple[tuple[str, object], ...], Capacity] = field(default_factory=dict)

    def capacity(self, settings: Settings) -> Capacity:
        """The capacity of a setting; computed once."""
        key = tuple(sorted(settings.items()))
        if key not in self._known:
            try:
                self._known[key] = self._search(settings)
            except TokenmillError as error:  # for example, a step too small for a block
                self._known[key] = Capacity(error=str(error))
        return self._known[key]

    def with_limits(self, limits: Limits) -> Planner:
        return Planner(self.traffic, self.base, self.times, limits)

    def _search(self, settings: Settings) -> Capacity:
        whole = self._run(settings, math.inf)
        if self._keeps(whole):
            return _capacity(math.inf, whole)
        if not whole.request_throughput:
            return Capacity(error="no request was completed")
        found, high = self._bracket(settings, whole.request_throughput)
        while 0 < found.rate < high / PRECISION:
            rate = math.sqrt(found.rate * high)
            outcome = self._run(settings, rate)
            if self._keeps(outcome):
                found = _capacity(rate, outcome)
            else:
                high = rate
        return found

    def _bracket(self, settings: Settings, throughput: float) -> tuple[Capacity, float]:
        """A capacity that keeps the limits, and a higher rate at which they are not kept."""
        rate, high = throughput, HIGHER * throughput
        while rate > LOWER * throughput:
            outcome = self._run(settings, rate)
            if self._keeps(outcome):
                return _capacity(rate, outcome), high
            rate, high = rate / 2, rate
        return Capacity(), high

    def _run(self, settings: Settings, rate: float) -> Outcome:
        self.num_runs += 1
        config = replace(self.base, disable_log_stats=True, **settings)
        return VirtualRun(self.traffic.at_rate(rate), config, self.times).run()

    def _keeps(self, outcome: Outcome) -> bool:
        return self.limits.are_kept(outcome, len(self.traffic.requests))


def _capacity(rate: float, outcome: Outcome) -> Capacity:
    return Capacity(rate=rate, goodput=outcome.request_throughput, outcome=outcome)
