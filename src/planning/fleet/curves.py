"""Arrival times: a constant rate, bursts, or a day."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from ...core.errors import ConfigError

CURVES = ("constant", "bursts", "day")
PERIODS = {"constant": math.inf, "bursts": 300.0, "day": 86_400.0}
"""Default lengths of a period, in seconds."""
NOISE_SECONDS = 60.0
BURST_FRACTION = 0.1
"""Fraction of a period that its burst takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The rate at which requests arrive. Arrivals are a Poisson process with this rate."""

    name: str = "constant"
    rate: float = 1.0
    """Requests per second, averaged over a period."""
    period: float | None = None
    """Seconds; None: the default in PERIODS."""
    swing: float = 0.8
    """`day`: the rate at the peak is 1 + swing times the average, and at the trough 1 - swing."""
    noise: float = 0.1
    """`day`: the standard deviation of the noise of each minute's rate, as a fraction."""
    burst_factor: float = 5.0
    """`bursts`: the rate in the first tenth of each period, divided by the rate in the rest."""

    def __post_init__(self) -> None:
        if self.name not in CURVES:
            raise ConfigError(f"--arrivals must be one of {', '.join(CURVES)}, got {self.name!r}")
        for flag, value in (
            ("--request-rate", self.rate),
            ("--period", self.period),
            ("--burst-factor", self.burst_factor),
        ):
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{flag} must be positive, got {value}")
        for name in ("swing", "noise"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"--{name} must be in [0, 1], got {getattr(self, name)}")

    def rate_at(self, at: float, noise: float = 0.0) -> float:
        """Requests per second at a time. `noise`: a standard normal variate."""
        period = self.period or PERIODS[self.name]
        if self.name == "day":
            wave = 1 - self.swing * math.cos(2 * math.pi * at / period)
            return max(0.0, self.rate * wave * (1 + self.noise * noise))
        if self.name == "bursts":
            base = self.rate / (1 + BURST_FRACTION * (self.burst_factor - 1))
            return base * (self.burst_factor if at % period < BURST_FRACTION * period else 1.0)
        return self.rate

    def times(self, duration: float, seed: int) -> Iterator[float]:
        """Arrival times before `duration`, ascending. Equal seeds give equal times.

        By thinning (Lewis and Shedler, 1979), one minute after the other.
        """
        rng = random.Random(f"arrivals {seed}")
        begin = 0.0
        while begin < duration:
            end = min(begin + NOISE_SECONDS, duration)
            noise = rng.gauss(0.0, 1.0)
            yield from self._minute(begin, end, noise, rng)
            begin = end

    def _minute(
        self, begin: float, end: float, noise: float, rng: random.Random
    ) -> Iterator[float]:
        highest = self._highest(noise)
        at = begin
        while highest > 0:
            at += rng.expovariate(highest)
            if at >= end:
                return
            if rng.random() * highest <= self.rate_at(at, noise):
                yield at

    def _highest(self, noise: float) -> float:
        if self.name == "day":
            return max(0.0, self.rate * (1 + self.swing) * (1 + self.noise * noise))
        return self.rate * max(1.0, self.burst_factor) if self.name == "bursts" else self.rate
