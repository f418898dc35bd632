"""The CPUs that this process may use, and the choice of computing threads on them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_V1 = ("cpu", "cpu,cpuacct")
"""Folders below _CGROUP where version 1 of cgroups mounts its CPU controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPlacement:
    """Number and CPUs of the threads that compute, the calling thread included."""

    num_threads: int
    cpus: tuple[int, ...] | None
    """The CPU that each thread is pinned to; None: threads are not pinned. The first CPU is left
    for the calling thread, which is never pinned, because it may belong to the user's program."""


def place_threads(num_threads: int | None = None) -> ThreadPlacement:
    """Place `num_threads` threads; None: one per physical core that this process may use.

    Two threads on one core share its multipliers, so a second one gains nothing. Threads are pinned
    if there is a core for each. With a CPU quota below the number of cores they are not pinned,
    because other containers would choose the same cores.
    """
    cores = _usable_cores()
    quota = _cpu_quota()
    if num_threads is None:
        num_threads = max(1, math.ceil(min(len(cores), quota)))
    pinned = num_threads <= len(cores) <= quota and hasattr(os, "sched_setaffinity")
    return ThreadPlacement(num_threads=num_threads, cpus=cores[:num_threads] if pinned else None)


def count_usable_cpus() -> int:
    """Number of CPUs in the process's affinity, or the container's limit if that is less."""
    return max(1, math.ceil(min(len(_affinity()), _cpu_quota())))


def _usable_cores() -> tuple[int, ...]:
    """One CPU of each physical core in the process's affinity."""
    first_of_core = {_siblings(cpu): cpu for cpu in sorted(_affinity(), reverse=True)}
    return tuple(sorted(first_of_core.values()))


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def _cpu_quota() -> float:
    """The container's CPU limit, in CPUs; infinite without a limit."""
    limits = [_read_quota(_CGROUP / "cpu.max")]
    for name in _CGROUP_V1:
        folder = _CGROUP / name
        limits.append(_read_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"))
    return min(limits)


def _read_quota(*files: Path) -> float:
    """Quota divided by period, read from one or two files; infinite without a limit.

    Without a limit, the quota is "max" in version 2 of cgroups and -1 in version 1, or the files do
    not exist.
    """
    try:
        quota, period = (int(word) for file in files for word in file.read_text().split())
    except (OSError, ValueError):
        return math.inf
    return quota / period if quota > 0 else math.inf
