"""A time limit for every test of the suites: a plugin that hangs fails one test, not the run."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Generator

import pytest

DEFAULT_SECONDS = 300.0
"""Native kernels may be compiled in a test, which takes minutes."""
_GRACE_SECONDS = 30.0


class TimeLimit:
    """A pytest plugin. Where a test cannot be interrupted, the run ends with all stacks."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stderr = os.dup(2)  # pytest captures the other one

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._end_in(3 * self._seconds + _GRACE_SECONDS)  # set-up, call and tear-down
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        if not hasattr(signal, "SIGALRM"):
            return (yield)
        previous = signal.signal(signal.SIGALRM, self._fail)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    def pytest_unconfigure(self) -> None:
        """A thread that hangs keeps the process from ending."""
        self._end_in(_GRACE_SECONDS)

    def _end_in(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._stderr)

    def _fail(self, number: int, frame: object) -> None:
        pytest.fail(f"took longer than {self._seconds:g} s (--time-limit): does the plugin hang?")
