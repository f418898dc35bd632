"""How much memory a provider keeps alive."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType

_NUM_ROUNDS = 50
_FREE = 256
"""Bytes by which a provider may grow in all rounds together without a finding."""


def describe_growth(root: object, live: Callable[[], object]) -> str | None:
    """What an object keeps of each round of `live`; None if nothing."""
    for _ in range(_NUM_ROUNDS):  # caches fill up
        live()
    before = reachable_bytes(root)
    for _ in range(_NUM_ROUNDS):
        live()
    kept = reachable_bytes(root) - before
    if kept <= _FREE:
        return None
    return f"memory grows: {kept} bytes were kept of {_NUM_ROUNDS} equal rounds, for ever"


def reachable_bytes(root: object) -> int:
    """Size of all that an object holds, as far as the garbage collector knows."""
    gc.collect()
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if id(found) not in seen and not isinstance(found, type | ModuleType | FunctionType):
            seen[id(found)] = found
            waiting += gc.get_referents(found)
    return sum(map(sys.getsizeof, seen.values()))
