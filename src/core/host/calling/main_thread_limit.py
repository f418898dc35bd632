"""Ends hooks that run for too long in the main thread of a server, because they block it.

A timer's signal interrupts Python code and regular expressions, and the hook fails. Native code
cannot be interrupted: if the hook still runs after twice the time, the process ends. If the native
code keeps Python's lock, no other Python thread runs; then a thread of faulthandler writes the
stacks, in which frames have the names of plugin and hook, and ends the process. A crash in native
code, which nothing can contain, writes them, too.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from time import perf_counter
from types import FrameType
from typing import Self

from ...errors import HookTimeoutError
from ...log import get_logger
from .guard import Guard

TICK_SECONDS = 0.5
STDERR = 2
_log = get_logger("plugins")


class MainThreadLimit:
    """A context manager that watches hooks which the main thread calls. Use it in that thread."""

    def __init__(self, guards: Iterable[Guard], seconds: float) -> None:
        """`seconds`: time after which a hook is interrupted."""
        self._guards = tuple(guards)
        self._seconds = seconds
        self._tick = min(TICK_SECONDS, seconds / 2)
        self._main = threading.get_ident()
        self._has_called = self._is_timed = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokenmill-hook-limit", daemon=True)
        for guard in self._guards:
            guard.name_frames()
            guard.mark = _Mark(self._note_call)

    def __enter__(self) -> Self:
        self._handler = signal.signal(signal.SIGALRM, self._interrupt)
        self._timer = signal.setitimer(signal.ITIMER_REAL, self._tick, self._tick)
        self._reported_crashes = faulthandler.is_enabled()
        if not self._reported_crashes:
            faulthandler.enable(file=STDERR)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._thread.join()
        if not self._reported_crashes:
            faulthandler.disable()
        signal.setitimer(signal.ITIMER_REAL, *self._timer)
        signal.signal(signal.SIGALRM, self._handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._overdue(self._seconds) is not None:
            raise HookTimeoutError(f"still ran after {self._seconds:g} s")

    def _run(self) -> None:
        while not self._stopped.wait(self._tick):
            if (guard := self._overdue(2 * self._seconds)) is not None:
                _end_process(guard)
            self._set_timer(is_on=self._has_called or self._overdue(0.0) is not None)
            self._has_called = False
        self._set_timer(is_on=False)

    def _note_call(self) -> None:
        """Start the timer with the first call after a pause."""
        self._has_called = True
        if not self._is_timed:
            self._set_timer(is_on=True)

    def _set_timer(self, *, is_on: bool) -> None:
        """Start the timer again, or stop it, because a server without calls may be stopped by
        Ctrl-Z, and is not to end when it goes on."""
        self._is_timed = is_on
        if is_on:
            seconds = 2 * self._seconds + self._tick
            faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)
        else:
            faulthandler.cancel_dump_traceback_later()

    def _overdue(self, seconds: float) -> Guard | None:
        """The hook that the main thread has called for longer than this."""
        began_before = perf_counter() - seconds
        for guard in self._guards:
            if 0.0 < guard.since < began_before and guard.thread == self._main:
                return guard
        return None


class _Mark:
    """Stands for the mark of a guard: reports when a call begins."""

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report

    def __setitem__(self, index: int, runs: int) -> None:
        if runs:
            self._report()


def _end_process(guard: Guard) -> None:
    _log.error(
        "server_ends",
        reason="a plugin blocks the server, and cannot be interrupted",
        **asdict(guard.source),
        hook=guard.hook,
    )
    sys.stderr.flush()
    os._exit(1)
