"""What a process needs: memory, files and threads, and its growth over a load."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MB = 1e6
PER = 10_000
"""Requests that a slope is given for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A process after a number of requests."""

    pid: int
    num_requests: int
    rss: float
    """MB."""


def rss(pid: int) -> float:
    """Resident memory in MB. Raises OSError if there is no such process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def num_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def num_threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def growth(samples: Sequence[Sample], warm_up: int) -> float | None:
    """MB of RSS per 10,000 requests: a linear fit with one slope, and a level per process.

    The samples of each process's first `warm_up` requests do not count. None if the others have
    fewer than 10,000 requests.
    """
    covariance = variance = 0.0
    num_requests = 0
    for pid in {sample.pid for sample in samples}:
        life = [sample for sample in samples if sample.pid == pid]
        warm = [one for one in life if one.num_requests >= life[0].num_requests + warm_up]
        if len(warm) < 2:
            continue
        num_requests += warm[-1].num_requests - warm[0].num_requests
        x_mean = statistics.mean(one.num_requests for one in warm)
        y_mean = statistics.mean(one.rss for one in warm)
        covariance += sum((one.num_requests - x_mean) * (one.rss - y_mean) for one in warm)
        variance += sum((one.num_requests - x_mean) ** 2 for one in warm)
    return PER * covariance / variance if num_requests >= PER else None
