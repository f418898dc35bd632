"""A time limit for every test of the suites: a plugin that hangs once fails one test only."""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from collections.abc import Generator
from types import FrameType

import pytest

DEFAULT_SECONDS = 300.0
"""Native kernels may be compiled in a test, which takes minutes."""
_GRACE_SECONDS = 30.0
_MAX_TIMEOUTS = 2
"""Number of time-outs that end the run: a plugin that hangs always would fail each test so slowly
that nobody waits for the end."""


class TimeLimit:
    """A pytest plugin. Where a test cannot be interrupted, the run ends with all stacks."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stderr = os.dup(2)  # pytest captures the other one
        self._reason = f"took longer than {seconds:g} s (--time-limit): does the plugin hang?"
        self._num_timeouts = 0
        self._is_interrupted = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._end_in(3 * self._seconds + _GRACE_SECONDS)  # set-up, call and tear-down
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()
            if self._num_timeouts == _MAX_TIMEOUTS:
                item.session.shouldfail = f"{_MAX_TIMEOUTS} tests {self._reason}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        if not hasattr(signal, "SIGALRM"):
            return (yield)
        previous = signal.signal(signal.SIGALRM, self._fail)
        previous_int = signal.signal(signal.SIGINT, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        try:
            return (yield)
        except KeyboardInterrupt:
            if self._is_interrupted:
                raise
            pytest.fail("the plugin raised KeyboardInterrupt, which ends a program")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
            signal.signal(signal.SIGINT, previous_int)

    def pytest_unconfigure(self) -> None:
        """A thread that hangs keeps the process from ending."""
        self._end_in(_GRACE_SECONDS)

    def _end_in(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._stderr)

    def _interrupt(self, number: int, frame: object) -> None:
        self._is_interrupted = True
        raise KeyboardInterrupt

    def _fail(self, number: int, frame: FrameType | None) -> None:
        self._num_timeouts += 1
        where = "".join(traceback.format_stack(frame)[-1:])
        os.write(self._stderr, f"\na test {self._reason}\n{where}".encode())
        pytest.fail(self._reason)
