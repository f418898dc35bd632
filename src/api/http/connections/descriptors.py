"""File descriptors of the server's process: its limit, and how many of them are for connections."""

from __future__ import annotations

import os
import resource

MAX_CONNECTIONS = 4096
OTHER_FILES = 24
"""Descriptors that are kept free for everything that is opened later and is not a connection."""
MIN_CONNECTIONS = 4
_ENOUGH = 2 * MAX_CONNECTIONS
"""Soft limit at which descriptors are never short. Higher ones slow down programs that close all
possible descriptors in a loop."""


def raise_descriptor_limit() -> None:
    """Raise this process's soft limit to the hard one, or to what is enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def max_connections() -> int:
    """Maximum number of open connections: the descriptors that are free now, less OTHER_FILES."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    free = soft - len(os.listdir("/dev/fd"))
    return max(MIN_CONNECTIONS, min(MAX_CONNECTIONS, free - OTHER_FILES))
