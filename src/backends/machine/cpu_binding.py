"""The CPUs that ranks compute on, as --cpu-bind names them."""

from __future__ import annotations

import os
import re

from ...core.errors import ConfigError
from .threads import count_usable_cores, use_share_of_cores

AUTO = "auto"
_SET = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")


def check_binding(text: str, size: int) -> None:
    """Raise ConfigError if `size` ranks cannot be bound to these CPUs."""
    if text != AUTO:
        _parse(text, size)


def bind(text: str, rank: int, size: int, num_threads: int) -> int:
    """Limit this process to a rank's CPUs, so that the system puts its memory next to them.

    Call it before other threads start. "auto" gives all ranks equal shares of the cores. Returns
    the number of threads that the rank should have, with "auto" at most `num_threads`. Raises
    ConfigError.
    """
    if text == AUTO:
        return min(use_share_of_cores(rank, size) or num_threads, num_threads)
    os.sched_setaffinity(0, _parse(text, size)[rank])
    return count_usable_cores()


def _parse(text: str, size: int) -> list[set[int]]:
    """The CPUs of each rank."""
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("--cpu-bind works on Linux only: leave it out")
    parts = text.replace(" ", "").split("|")
    if not all(map(_SET.fullmatch, parts)):
        raise ConfigError(
            f"--cpu-bind {text!r:.80} is neither auto nor a set of CPUs per rank, "
            "such as 0-15|16-31"
        )
    if len(parts) != size:
        raise ConfigError(
            f"--cpu-bind names {len(parts)} sets of CPUs, but the number of ranks is {size}: "
            "separate one set per rank with |"
        )
    sets, usable = [_read_set(part) for part in parts], os.sched_getaffinity(0)
    if shared := [cpu for cpu in set().union(*sets) if sum(cpu in one for one in sets) > 1]:
        raise ConfigError(f"--cpu-bind names CPU {min(shared)} for two ranks: give each its own")
    if missing := sorted(set().union(*sets) - usable):
        raise ConfigError(
            f"--cpu-bind names CPU {missing[0]}, but this process may only use "
            f"{','.join(map(str, sorted(usable)))}"
        )
    return sets


def _read_set(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        ends = [int(end) for end in part.split("-")]
        if ends[-1] < ends[0]:
            raise ConfigError(f"--cpu-bind names the empty range {part}: give the lower CPU first")
        found.update(range(ends[0], ends[-1] + 1))
    return found
