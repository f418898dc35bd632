"""The CPUs that this process may use, and the choice of computing threads on them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from .cgroups import groups_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPlacement:
    """Number and CPUs of the threads that compute, the calling thread included."""

    num_threads: int
    cpus: tuple[int, ...] | None
    """The CPU that each thread is pinned to; None: threads are not pinned. The first CPU is for the
    calling thread. It is pinned only while it computes, because it may belong to the user's
    program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadShare:
    """The CPUs and threads of one of several processes."""

    cpus: tuple[int, ...]
    """All CPUs of the process's cores. Empty: it may use all CPUs."""
    num_threads: int


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


def divide_cores(number: int) -> tuple[ThreadShare, ...] | None:
    """Divide the cores among this number of processes; None if there are fewer cores.

    Neighbouring cores stay together, because they often share a cache and a memory controller. With
    a CPU quota below the number of cores, every process may use all cores, as in `place_threads`;
    then only the number of threads is divided.
    """
    cores, quota = _usable_cores(), _cpu_quota()
    if number > min(len(cores), quota):
        return None
    if quota < len(cores):
        return (ThreadShare(cpus=(), num_threads=int(quota // number)),) * number
    own = (cores[len(cores) * i // number : len(cores) * (i + 1) // number] for i in range(number))
    return tuple(ThreadShare(cpus=_with_siblings(part), num_threads=len(part)) for part in own)


def count_usable_cores() -> int:
    """Number of physical cores in the process's affinity, or the container's limit if that is
    less."""
    return max(1, int(min(len(_usable_cores()), _cpu_quota())))


def count_usable_cpus() -> int:
    """Number of CPUs in the process's affinity, or the container's limit if that is less."""
    return max(1, math.ceil(min(len(affinity()), _cpu_quota())))


def use_share_of_cores(rank: int, size: int) -> int | None:
    """Limit this process, one of `size`, to its share of the cores that it may use. Returns the
    number of its threads; None if there are fewer cores than processes.

    Processes that compute on the same cores wait for each other in every product. Cores are not
    limited if a CPU quota is below their number, or if the system has no such function.
    """
    shares = divide_cores(size)
    if not shares:
        return None
    if shares[rank].cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, shares[rank].cpus)
    return shares[rank].num_threads


def _usable_cores() -> tuple[int, ...]:
    """One CPU of each physical core in the process's affinity. Cores with the same memory
    controller are neighbours, even if the system numbers the sockets' CPUs alternately."""
    first_of_core = {_siblings(cpu): cpu for cpu in sorted(affinity(), reverse=True)}
    return tuple(sorted(first_of_core.values(), key=lambda cpu: (_memory_node(cpu), cpu)))


def _with_siblings(cores: tuple[int, ...]) -> tuple[int, ...]:
    """All usable CPUs of these cores; each core is given by one of its CPUs."""
    kept = {_siblings(cpu) for cpu in cores}
    return tuple(sorted(cpu for cpu in affinity() if _siblings(cpu) in kept))


def affinity() -> set[int]:
    """The CPUs on which the system lets this process run."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def _memory_node(cpu: int) -> int:
    nodes = Path(f"/sys/devices/system/cpu/cpu{cpu}").glob("node[0-9]*")
    return min((int(node.name.removeprefix("node")) for node in nodes), default=0)


def _cpu_quota() -> float:
    """The CPU limit of this process's control groups, in CPUs; infinite without a limit."""
    limits = [math.inf]
    for folder, is_v1 in groups_of("cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_v1 else ("cpu.max",)
        limits.append(_read_quota(*(folder / name for name in names)))
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
