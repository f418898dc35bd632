"""The part of the machine that a child process uses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """CPUs and environment variables of one child process. The default is the whole machine."""

    cpus: tuple[int, ...] = ()
    """The CPUs that it may use. Empty: those of its parent."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that libraries read when they are loaded, such as CUDA_VISIBLE_DEVICES."""

    def enter(self) -> None:
        """Limit this process to its place.

        Call it before other threads start, and before libraries that compute are imported: they
        count the CPUs only once.
        """
        os.environ.update(self.environment)
        if self.cpus and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cpus)


WHOLE_MACHINE = Place()
