"""Measures the CPU time that other processes use during a measurement."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Reading:
    """CPU seconds so far: of the whole machine, and of the measured process with its children."""

    machine: float
    measured: float


def read_cpu(pid: int) -> Reading:
    """Read the CPU times. Time that a hypervisor takes away (steal) counts as the machine's."""
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system
    busy += getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0)
    return Reading(busy + getattr(times, "steal", 0.0), _cpu_of_tree(pid))


def foreign_share(before: Reading, after: Reading, seconds: float) -> float:
    """The fraction of all cores that other processes used between two readings, at least 0."""
    foreign = (after.machine - before.machine) - (after.measured - before.measured)
    cores = psutil.cpu_count() or 1
    return max(0.0, foreign / (seconds * cores))


def _cpu_of_tree(pid: int) -> float:
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                # Includes the times of children that have ended.
                total += sum(process.cpu_times()[:4])
    return total
