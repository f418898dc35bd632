"""The requests of a workload at any request rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..planning.workload import PlannedRequest, let_arrive


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests that arrive at random, or as a trace says, but faster or slower."""

    requests: Sequence[PlannedRequest]
    is_trace: bool
    """Whether the times of `requests` count."""
    burstiness: float = 1.0
    seed: int = 0

    def at_rate(self, rate: float) -> Sequence[PlannedRequest]:
        """The requests, `rate` per second on average; infinity: all at once."""
        if not self.is_trace:
            return let_arrive(self._at_once(), rate, self.burstiness, self.seed)
        if math.isinf(rate):
            return self._at_once()
        factor = len(self.requests) / rate / max(request.at for request in self.requests)
        return [replace(request, at=request.at * factor) for request in self.requests]

    def _at_once(self) -> list[PlannedRequest]:
        return [replace(request, at=0.0) for request in self.requests]
