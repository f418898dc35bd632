"""Measures how long a process has made no progress, in time in which it was able to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .cpu_waits import ThreadTimes, family_times

MAX_GROWTH = 0.5
"""Seconds. Between two checks a stall grows by less, unless the machine was paused: by Ctrl-Z, a
suspended container or a virtual machine that was moved."""
PATIENCE = 0.5
"""Seconds of a stall before which the system is not asked how long its threads waited."""
MAX_DISK = 60.0
"""Seconds of a stall in which a thread may wait for a disk, for example for weights that are mapped
from a slow one. Not for ever, because a driver that hangs looks the same."""
COMPUTES = 0.01
"""Seconds on a CPU between two checks with which a new process counts as computing."""
Times = Mapping[int, Mapping[int, ThreadTimes]]


class Stall:
    """The current stall of one process. Its clock is the time of the checks, less the longest time
    that one thread of the process, or of a process that it started, has waited for a CPU, and less
    the checks at which a thread waited for a disk.

    A process that was started during the stall, and computes, is progress: it is a compiler. If the
    system does not say how long threads wait, the clock is the time of the checks.
    """

    def __init__(
        self,
        pid: int | None,
        times_of: Callable[[int], Times] = family_times,
        *,
        first_look: float = 0.0,
    ) -> None:
        """`pid`: None if the process is on another machine. `first_look`: seconds of a stall before
        which the system is not asked at all, because a look takes up to 50 µs per thread."""
        self.seconds = 0.0
        self._pid = pid
        self._times_of = times_of
        self._first_look = first_look
        self._mark: object = None
        self._checked = self._wall = self._disk = 0.0
        self._first: Times | None = None
        """The times at the first look."""
        self._last: Times = {}

    def check(self, now: float, mark: object) -> float:
        """Note a check at a time of the monotonic clock, and return the seconds without progress.

        `mark` is different from the one before if there was progress; None: nothing is to be done.
        """
        passed, self._checked = now - self._checked, now
        if mark is None or mark != self._mark:
            self._mark = mark
            self._restart()
            return 0.0
        self._wall += min(passed, MAX_GROWTH)
        self.seconds = self._wall
        if self._pid is None or self._wall < self._first_look:
            return self.seconds
        if self._first is None:
            self._first = self._last = self._times_of(self._pid)
        if self._wall < PATIENCE:
            return self.seconds
        times = self._times_of(self._pid)
        if _started_one_that_computes(self._first, self._last, times):
            self._restart({pid: times[pid] for pid in self._first if pid in times})
        else:
            if _waits_for_disk(times):
                self._disk = min(MAX_DISK, self._disk + min(passed, MAX_GROWTH))
            self.seconds = max(0.0, self._wall - self._disk - _longest_wait(self._first, times))
        self._last = times
        return self.seconds

    def _restart(self, first: Times | None = None) -> None:
        self.seconds = self._wall = self._disk = 0.0
        self._first = first


def _longest_wait(first: Times, now: Times) -> float:
    """The longest time that one thread has waited for a CPU meanwhile."""
    waits = (
        times.waiting - (before.waiting if (before := first.get(pid, {}).get(tid)) else 0.0)
        for pid, threads in now.items()
        for tid, times in threads.items()
    )
    return max(waits, default=0.0)


def _waits_for_disk(now: Times) -> bool:
    return any(times.waits_for_disk for threads in now.values() for times in threads.values())


def _started_one_that_computes(first: Times, last: Times, now: Times) -> bool:
    new = now.keys() - first.keys()
    return any(_running(now[pid]) - _running(last.get(pid, {})) > COMPUTES for pid in new)


def _running(threads: Mapping[int, ThreadTimes]) -> float:
    return sum(times.running for times in threads.values())
