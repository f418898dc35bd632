"""Measures how long an engine has made no step, in time in which it was able to."""

from __future__ import annotations

MAX_GROWTH = 2.0
"""Seconds. Between two checks a stall grows by less, unless the processes were paused: by Ctrl-Z, a
suspended container or a virtual machine that was moved."""


class Stall:
    """The current stall of one engine. An engine that goes on after a pause reports a stall as long
    as the pause, and must not be killed for it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._reported = 0.0

    def note(self, reported: float) -> None:
        """Note at a check for how many seconds the engine is said to have made no step."""
        is_another = reported < self._reported
        growth = reported if is_another else reported - self._reported
        self.seconds = (0.0 if is_another else self.seconds) + min(growth, MAX_GROWTH)
        self._reported = reported
