"""Limits on latencies, with the names of `bench serve --goodput`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from ..bench.reports.figures import parse_limits
from ..planning.outcome import Outcome

NAMES = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True, slots=True)
class Limits:
    """Milliseconds that 99 % of the requests keep; `itl`: 99 % of the times between two tokens."""

    ttft: float = math.inf
    tpot: float = math.inf
    itl: float = math.inf
    e2el: float = math.inf

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Limits from ["ttft:200", "itl:50"]. Raises ConfigError."""
        return cls(**parse_limits(texts, NAMES))

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g} ms" for name, value in self.given().items()) or "none"

    def given(self) -> Mapping[str, float]:
        values = {name: getattr(self, name) for name in NAMES}
        return {name: value for name, value in values.items() if not math.isinf(value)}

    def without(self) -> Iterator[tuple[str, Limits]]:
        """For each limit: its name, and the others without it."""
        for name in self.given():
            yield name, replace(self, **{name: math.inf})

    def are_kept(self, outcome: Outcome, num_requests: int) -> bool:
        """Whether all requests were completed, within the limits."""
        if outcome.completed < num_requests:
            return False
        found = (
            outcome.p99_ttft_ms, outcome.p99_tpot_ms, outcome.p99_itl_ms, outcome.p99_e2el_ms,
        )  # fmt: skip
        return all(
            value is None or value <= getattr(self, name)
            for name, value in zip(NAMES, found, strict=True)
        )
