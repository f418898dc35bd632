"""Limits of the time and memory that a child process may need for one piece of work."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator


def limit_memory(num_bytes: int) -> None:
    """Let this process get this many bytes in addition to what it has. More is a MemoryError.

    Without effect on macOS, which has no such limit.
    """
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + num_bytes, size + num_bytes))


@contextlib.contextmanager
def limited_time(cpu_seconds: float) -> Iterator[None]:
    """Within it, the process dies of SIGPROF after this CPU time, even inside native code."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
