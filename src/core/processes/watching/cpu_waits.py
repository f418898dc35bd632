"""Reads how long the threads of a process waited for a CPU, and which processes it has started.

A process that waits for a CPU does not hang, however long its step takes. Only Linux reports it, in
/proc/PID/task/TID/schedstat: nanoseconds on a CPU, and nanoseconds in which the thread was ready to
run and had none (https://docs.kernel.org/scheduler/sched-stats.html).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_NANO = 1e-9
MAX_PROCESSES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTimes:
    """Seconds since the start of a thread."""

    running: float
    waiting: float
    """Ready to run, without a CPU."""
    waits_for_disk: bool = False
    """Whether it now sleeps so that no signal wakes it: for a disk, or in a driver that hangs."""


def family_times(pid: int) -> Mapping[int, Mapping[int, ThreadTimes]]:
    """The times of the threads of a process and of all processes that it started, by process.

    Empty where the system does not say it, or if the process has ended.
    """
    return {one: dict(_times_of(one)) for one in _family(pid)}


def _family(pid: int) -> list[int]:
    found = [pid]
    for one in found:  # grows
        for file in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, _read(file).split())
        if len(found) > MAX_PROCESSES:
            break
    return found


def _times_of(pid: int) -> Iterator[tuple[int, ThreadTimes]]:
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        if len(numbers := _read(file).split()) >= 2:
            running, waiting = (_NANO * int(number) for number in numbers[:2])
            state = _read(file.with_name("stat")).rpartition(") ")[2][:1]
            times = ThreadTimes(running=running, waiting=waiting, waits_for_disk=state == "D")
            yield int(file.parent.name), times


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""
