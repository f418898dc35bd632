"""When requests are sent: an open loop, which never waits for the server.

The distributions are those of `vllm bench serve`: intervals of a gamma distribution, scaled so that
the whole takes as long as the rate says.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The times at which requests arrive."""

    rate: float = math.inf
    """Requests per second; infinity: all at once."""
    burstiness: float = 1.0
    """1: a Poisson process; less: more bursts; infinity: equal intervals."""
    ramp: str | None = None
    """"linear" or "exponential": the rate changes from `ramp_start` to `ramp_end`."""
    ramp_start: float = 0.0
    ramp_end: float = 0.0

    def times(self, count: int, seed: int) -> Sequence[float]:
        """Seconds after the start at which each of `count` requests is sent, ascending."""
        rng = random.Random(seed)
        intervals = [self._interval(self._rate_of(index, count), rng) for index in range(count)]
        times, now = [], 0.0
        for interval in intervals:
            now += interval
            times.append(now)
        if self.ramp is None and now > 0:
            scale = count / self.rate / now
            times = [time * scale for time in times]
        return times

    def _rate_of(self, index: int, count: int) -> float:
        if self.ramp is None:
            return self.rate
        progress = index / max(count - 1, 1)
        if self.ramp == "linear":
            return self.ramp_start + (self.ramp_end - self.ramp_start) * progress
        factor: float = (self.ramp_end / self.ramp_start) ** progress
        return self.ramp_start * factor

    def _interval(self, rate: float, rng: random.Random) -> float:
        if math.isinf(rate):
            return 0.0
        if math.isinf(self.burstiness):
            return 1.0 / rate
        return rng.gammavariate(self.burstiness, 1.0 / (rate * self.burstiness))
