"""The requests of a fleet: tenants with prompts that begin alike."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from ...core.errors import ConfigError
from ..workload import PlannedRequest
from .curves import Curve

_PROMPT_IDS = 1 << 20
"""The distance between the first token ids of two prompts. No prompt is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticTraffic:
    """Requests of tenants. Requests of one tenant begin with the same tokens.

    Of the tenants, number k sends a share that is proportional to 1 / k (Zipf's law). Prompts are
    consecutive token ids, because only their equality matters: it is fast, and no two are equal.
    """

    curve: Curve
    duration: float
    """Seconds in which requests arrive."""
    num_tenants: int = 20
    prefix_len: int = 256
    """Tokens with which all prompts of a tenant begin, in addition to `input_len`."""
    input_len: int = 256
    output_len: int = 64
    """Tokens that a request generates, on average."""
    range_ratio: float = 0.5
    """Lengths are uniform within this fraction of their average."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, lowest in (
            ("num_tenants", 1),
            ("prefix_len", 0),
            ("input_len", 1),
            ("output_len", 1),
        ):
            value = getattr(self, name)
            if not lowest <= value < _PROMPT_IDS // 2:
                flag = name.removeprefix("num_").replace("_", "-")
                raise ConfigError(f"--{flag} must be at least {lowest}, got {value}")
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"--range-ratio must be in [0, 1), got {self.range_ratio}")
        if not self.duration > 0:
            raise ConfigError(f"--duration must be positive, got {self.duration}")

    def requests(self) -> Iterator[PlannedRequest]:
        """The requests in order of arrival. They are made one by one, to save memory."""
        rng = random.Random(f"requests {self.seed}")
        tenants = range(self.num_tenants)
        weights = list(itertools.accumulate(1 / (tenant + 1) for tenant in tenants))
        begins = [self._ids(tenant, self.prefix_len) for tenant in tenants]
        for number, at in enumerate(self.curve.times(self.duration, self.seed)):
            [tenant] = rng.choices(tenants, cum_weights=weights)
            own = self._ids(self.num_tenants + number, self._length(rng, self.input_len))
            yield PlannedRequest(
                at=at,
                prompt_token_ids=begins[tenant] + own,
                max_tokens=self._length(rng, self.output_len),
                session_id=f"tenant-{tenant}",
            )

    def _ids(self, number: int, length: int) -> tuple[int, ...]:
        first = (number + 1) * _PROMPT_IDS
        return tuple(range(first, first + length))

    def _length(self, rng: random.Random, mean: int) -> int:
        spread = int(mean * self.range_ratio)
        return max(1, rng.randint(mean - spread, mean + spread))
