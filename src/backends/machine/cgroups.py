"""The control groups of this process, which limit its memory and its CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def groups_of(controller: str) -> Iterator[tuple[Path, bool]]:
    """The folders of this process's groups and of the groups around them, each with whether it is
    of version 1. `controller`: "memory" or "cpu".

    A container often sees its own group as the root, whatever /proc says. So folders may not exist.
    """
    for controllers, path in _memberships(controller):
        if controllers and controller not in controllers.split(","):
            continue
        # Version 1 mounts each controller apart, some under the names of two, such as cpu,cpuacct.
        for name in dict.fromkeys((controllers and controller, controllers)):
            folder = _ROOT / name / path.strip("/")
            for group in (folder, *folder.parents):
                if group.is_relative_to(_ROOT / name):
                    yield group, bool(controllers)


def _memberships(controller: str) -> list[tuple[str, str]]:
    """The lines of /proc/self/cgroup: controllers, "" in version 2, and path."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        lines = []
    found = [(parts[1], parts[2]) for line in lines if len(parts := line.split(":", 2)) == 3]
    return found or [("", "/"), (controller, "/")]
