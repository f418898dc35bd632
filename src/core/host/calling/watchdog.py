"""A thread that logs hooks that run for too long, with the stack of their thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from dataclasses import asdict
from time import perf_counter
from types import FrameType

from ...log import get_logger
from .guard import Guard

MAX_POLL_SECONDS = 1.0
"""Maximum time between two looks at the guards. A look takes no measurable time."""
_MAX_FRAMES = 12
"""Number of frames that are logged, innermost first."""
_log = get_logger("plugins")


class Watchdog:
    """Looks at the guards of one engine from a thread of its own, so hooks pay nothing for it."""

    def __init__(self, guards: Iterable[Guard], seconds: float) -> None:
        """`seconds` is the time after which a running hook is logged; 0: no hook is logged."""
        self._guards = tuple(guards)
        self._seconds = seconds
        self._due: dict[Guard, tuple[float, float]] = {}
        """By guard: the time at which its call began, and its duration at which to log it next."""
        self._stopped = threading.Event()

    def start(self) -> None:
        """Watch until `stop`."""
        if self._seconds:
            threading.Thread(target=self._run, name="tokenmill-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def look(self, now: float) -> None:
        """Log the hooks that are due at `now`, a time of `perf_counter`.

        A hook that still runs is logged again each time that its duration has doubled.
        """
        for guard, since in self._innermost().items():
            began, after = self._due.get(guard, (0.0, 0.0))
            if began != since:
                after = self._seconds
            if now - since >= after:
                self._report(guard, now - since)
                after = 2 * (now - since)
            self._due[guard] = since, after

    def _run(self) -> None:
        while not self._stopped.wait(min(self._seconds / 4, MAX_POLL_SECONDS)):
            self.look(perf_counter())

    def _innermost(self) -> dict[Guard, float]:
        """The innermost hook that each thread runs, and the time at which it began.

        Hooks can be nested: `preempt` runs inside `schedule`.
        """
        running = ((guard.since, guard) for guard in self._guards)
        by_thread = {
            guard.thread: (guard, since)
            for since, guard in sorted(running, key=lambda pair: pair[0])
            if since
        }
        return dict(by_thread.values())

    def _report(self, guard: Guard, seconds: float) -> None:
        stack = _stack_of(guard)
        if stack:  # otherwise the hook has ended meanwhile
            _log.warning(
                "hook_hangs",
                **asdict(guard.source),
                hook=guard.hook,
                seconds=round(seconds, 1),
                stack=" > ".join(stack),
            )


def _stack_of(guard: Guard) -> list[str]:
    """The calls inside the hook, outermost first."""
    found: list[str] = []
    frame: FrameType | None = sys._current_frames().get(guard.thread)
    while frame is not None:
        if frame.f_code is Guard.resume.__code__:
            return found[:_MAX_FRAMES][::-1]
        found.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return []
