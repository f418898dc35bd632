"""Virtual time: the events of a run, in order."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Clock:
    """Calls functions at their times. Functions of the same time are called in the order of their
    registration, so a run is repeatable."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds."""
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def at(self, time: float, function: Callable[..., None], *args: Any) -> None:
        """Call `function` at a time, which is not before now."""
        heapq.heappush(self._events, (max(time, self.now), next(self._numbers), function, args))

    def next_time(self) -> float | None:
        """The time of the next event, or None."""
        return self._events[0][0] if self._events else None

    def advance(self) -> None:
        """Call the next function."""
        self.now, _, function, args = heapq.heappop(self._events)
        function(*args)
