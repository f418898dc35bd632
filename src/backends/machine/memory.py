"""Main memory that this process may still use: the machine's, or less in a container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

SHARE = "TOKENMILL_MEMORY_SHARE"
"""Environment variable of a replica: its share, in bytes, of the memory that was free before the
first replica started."""
_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


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
    for folder, files in _groups():
        room = _room(folder, files)
        if room is not None:
            free.append(room)
    return max(0, min(free))


def loadable_memory() -> int:
    """Return the bytes of main memory into which this process may load a model.

    Replicas start at the same time, so each may use only its share, even if more is free now.
    """
    share = os.environ.get(SHARE, "")
    return min(usable_memory(), int(share)) if share.isdecimal() else usable_memory()


def _groups() -> Iterator[tuple[Path, _Files]]:
    """The folders of this process's control groups and of the groups around them.

    A container often sees its own group as the root, whatever /proc says.
    """
    for controllers, path in _memberships():
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _CGROUP / "memory" if controllers else _CGROUP
        folder = root / path.strip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(root):
                yield group, _V1 if controllers else _V2


def _memberships() -> list[tuple[str, str]]:
    """The lines of /proc/self/cgroup: controllers, "" in version 2, and path."""
    try:
        lines = _OWN_CGROUPS.read_text().splitlines()
    except OSError:
        lines = []
    found = [(parts[1], parts[2]) for line in lines if len(parts := line.split(":", 2)) == 3]
    return found or [("", "/"), ("memory", "/")]


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
