"""Main memory that this process may still use: the machine's, or less in a container."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from .cgroups import groups_of

SHARE = "TOKENMILL_MEMORY_SHARE"
"""Environment variable of a replica: its share, in bytes, of the memory that was free before the
first replica started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """The memory files of one version of cgroups."""

    limit: str
    usage: str
    cache: tuple[str, ...]
    """Lines of memory.stat that count pages of files, which the system frees when it needs them."""


_V2 = _Files(limit="memory.max", usage="memory.current", cache=("inactive_file", "active_file"))
_V1 = _Files(
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    cache=("total_inactive_file", "total_active_file"),
)


def usable_memory() -> int:
    """Return the bytes of main memory that this process may still use without swapping.

    That is the machine's available memory, or what the limits of its control groups leave. Cached
    files count as free.
    """
    free = [psutil.virtual_memory().available]
    for folder, is_v1 in groups_of("memory"):
        room = _room(folder, _V1 if is_v1 else _V2)
        if room is not None:
            free.append(room)
    return max(0, min(free))


def loadable_memory() -> int:
    """Return the bytes of main memory into which this process may load a model.

    Replicas start at the same time, so each may use only its share, even if more is free now.
    """
    share = os.environ.get(SHARE, "")
    return min(usable_memory(), int(share)) if share.isdecimal() else usable_memory()


def _room(folder: Path, files: _Files) -> int | None:
    """Bytes that a group may still use; None without a limit."""
    try:
        limit = int((folder / files.limit).read_text())
        usage = int((folder / files.usage).read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such group, or its limit is "max"
        return None
    stat = dict(line.split(" ", 1) for line in lines if " " in line)
    return limit - usage + sum(int(stat.get(name, 0)) for name in files.cache)
