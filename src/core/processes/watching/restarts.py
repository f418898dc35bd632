"""When a process that ended unexpectedly is started again, and when its parent gives up."""

from __future__ import annotations

from collections import deque

PERIOD = 600.0
"""Seconds in which the restarts are counted."""
FIRST_DELAY = 0.25
"""Seconds before the second restart within PERIOD; the first comes at once. They double."""
LONGEST_DELAY = 4.0
"""Seconds. Loading a model takes about as long, so waiting longer would save little work."""


class Restarts:
    """Counts the restarts of one process, with back-off. The caller gives the clock's time."""

    def __init__(self, max_restarts: int) -> None:
        """`max_restarts`: number of restarts within PERIOD that are allowed."""
        self.max_restarts = max_restarts
        self._times: deque[float] = deque()

    def next_delay(
        self, now: float, *, is_explained: bool = False, counts: bool = True
    ) -> float | None:
        """Seconds to wait before the next restart, which counts from now on. None: give up.

        `is_explained`: the cause of this failure and of the one before is known, and will not come
        again. Then neither counts. `counts`: False after a restart that could only fail.
        """
        if not counts:
            return LONGEST_DELAY
        while self._times and now - self._times[0] > PERIOD:
            self._times.popleft()
        if is_explained:
            if self._times:
                self._times.pop()
            return 0.0
        number = len(self._times)
        if number >= self.max_restarts:
            return None
        self._times.append(now)
        return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (number - 1)) if number else 0.0
