"""How many threads compute, and where."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_V1 = ("cpu", "cpu,cpuacct")
"""Where version 1 mounts its controller of CPU time, below _CGROUP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPlacement:
    """Threads that compute, the calling one included."""

    num_threads: int
    cpus: tuple[int, ...] | None
    """The one that each keeps to; None lets them wander. The first is left to the calling thread,
    which is never pinned: it may be a user's own."""


def place_threads(num_threads: int | None = None) -> ThreadPlacement:
    """One thread per physical core that this process may use, or as many as asked for.

    Two threads of one core share its multipliers, and gain nothing. Threads are pinned if there is
    a core for each; below a container's CPU quota they are not, since its neighbours would choose
    the same cores.
    """
    cores = _usable_cores()
    quota = _cpu_quota()
    if num_threads is None:
        num_threads = max(1, math.ceil(min(len(cores), quota)))
    pinned = num_threads <= len(cores) <= quota and hasattr(os, "sched_setaffinity")
    return ThreadPlacement(num_threads=num_threads, cpus=cores[:num_threads] if pinned else None)


def _usable_cores() -> tuple[int, ...]:
    """One CPU of each physical core in the process's affinity."""
    if not hasattr(os, "sched_getaffinity"):
        return tuple(range(os.cpu_count() or 1))
    first_of_core = {_siblings(cpu): cpu for cpu in sorted(os.sched_getaffinity(0), reverse=True)}
    return tuple(sorted(first_of_core.values()))


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def _cpu_quota() -> float:
    """CPUs' worth of time that the container grants; infinite without a limit."""
    limits = [_read_quota(_CGROUP / "cpu.max")]
    for name in _CGROUP_V1:
        folder = _CGROUP / name
        limits.append(_read_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"))
    return min(limits)


def _read_quota(*files: Path) -> float:
    """Quota over period, of one file or two; infinite where there is none: "max" in version 2 of
    cgroups, -1 in version 1, or no such files."""
    try:
        quota, period = (int(word) for file in files for word in file.read_text().split())
    except (OSError, ValueError):
        return math.inf
    return quota / period if quota > 0 else math.inf
