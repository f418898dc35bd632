"""Whether the end of a process is its own fault."""

from __future__ import annotations

import signal
from pathlib import Path

OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals that someone else sends. They say nothing about what the process did."""
_VMSTAT = Path("/proc/vmstat")


def is_crash(end_signal: int | None, num_oom_kills_before: int) -> bool:
    """Whether what the process did may have ended it.

    `end_signal`: the signal that ended it; None: it has ended itself. SIGKILL counts only if the
    system has killed a process for lack of memory since `num_oom_kills_before` was read.
    """
    if end_signal == signal.SIGKILL:
        return num_oom_kills() > num_oom_kills_before
    return end_signal not in OUTSIDE


def num_oom_kills() -> int:
    """Number of processes that the system has killed for lack of memory; 0 if it does not say."""
    try:
        lines = _VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
