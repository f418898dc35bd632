"""Names plugins that are slow while an engine or a server starts, and ends those that hang.

The call of a plugin in the main thread of a server is interrupted, and fails. Everything else ends
the process: native code, and other threads. If native code keeps Python's lock, a thread of
faulthandler, which needs no lock, writes the stacks and ends the process.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from ...contract.start_calls import START_CALLS, StartCall
from ...errors import HookTimeoutError
from ...log import get_logger
from ...processes.watching.stalls import Stall

TICK_SECONDS = 0.5
SLOW_SECONDS = 4.0
"""Time after which the log names a call that still runs."""
GRACE_SECONDS = 5.0
"""Time that a call has to end after it was interrupted."""
STDERR = 2
_log = get_logger("plugins")


class StartLimit:
    """A context manager that watches START_CALLS. Use it in the main thread.

    The clock is that of Stall: it stands while the process waits for a CPU or a disk, and a process
    that the plugin starts and that computes, such as a compiler, is progress.
    """

    def __init__(
        self, seconds: float, show: Callable[[str], None] | None = None, *, interrupts: bool = False
    ) -> None:
        """`seconds`: without progress; 0: no limit. `show` gets the stage of the innermost call, or
        "". `interrupts`: interrupt a call in this thread, and let Ctrl-C end the process while one
        runs."""
        self._seconds = seconds
        self._grace = min(GRACE_SECONDS, seconds)
        self._show = show
        self._main = threading.get_ident() if interrupts else 0
        self._stall = Stall(os.getpid())
        self._overdue: StartCall | None = None
        self._ctrl_c: Any = None
        """The handler of Ctrl-C while a call runs in the main thread and has taken its place."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokenmill-start-limit", daemon=True)

    def __enter__(self) -> Self:
        START_CALLS.on_change = self._note
        if self._main:
            self._handler = signal.signal(signal.SIGALRM, self._interrupt)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        START_CALLS.on_change = None
        self._stopped.set()
        self._thread.join()
        if self._main:  # last: a late signal of the thread would end the process by default
            signal.signal(signal.SIGALRM, self._handler)

    def _note(self) -> None:
        """A call has begun or ended."""
        running = START_CALLS.running
        if self._show is not None:
            self._show(running[-1].stage if running else "")
        if self._seconds:
            self._set_timer(is_on=bool(running))
        if threading.get_ident() != self._main:
            return
        if running and self._ctrl_c is None:
            # The default action ends the process, even if it hangs in native code.
            self._ctrl_c = signal.signal(signal.SIGINT, signal.SIG_DFL)
        elif not running and self._ctrl_c is not None:
            signal.signal(signal.SIGINT, self._ctrl_c)
            self._ctrl_c = None

    def _run(self) -> None:
        slow: StartCall | None = None
        while not self._stopped.wait(min(TICK_SECONDS, self._seconds / 4 or TICK_SECONDS)):
            call = next(reversed(START_CALLS.running), None)
            if call is not None and call is not slow and call.seconds > SLOW_SECONDS:
                slow = call
                _log.warning("plugin_start_slow", stage=call.stage, seconds=round(call.seconds))
            if self._seconds:
                self._limit(call)
        self._set_timer(is_on=False)

    def _limit(self, call: StartCall | None) -> None:
        self._set_timer(is_on=call is not None)
        seconds = self._stall.check(time.monotonic(), call)
        if call is not None and seconds > self._seconds:
            self._end(call, seconds)

    def _end(self, call: StartCall, seconds: float) -> None:
        is_hopeless = seconds > self._seconds + self._grace
        if is_hopeless or call.thread not in (0, self._main):
            _log.error("start_hangs", stage=call.stage, seconds=round(seconds, 1))
            sys.stderr.flush()
            os._exit(1)
        if call.thread:
            self._overdue = call
            signal.pthread_kill(call.thread, signal.SIGALRM)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._overdue in START_CALLS.running:
            raise HookTimeoutError(f"it made no progress for {self._seconds:g} s")

    def _set_timer(self, *, is_on: bool) -> None:
        if is_on:
            seconds = self._seconds + 2 * self._grace
            faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)
        else:
            faulthandler.cancel_dump_traceback_later()
