"""Measures the memory that a provider keeps alive."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType

_NUM_ROUNDS = 50
_FREE = 256
"""Bytes by which a provider may grow in all rounds together before growth is reported."""
_MOST_KEPT = 4096
"""Maximum memory, in bytes, that a provider may keep of 200 ended requests together."""


def check_nothing_is_kept(root: object, live: Callable[[str, int], object]) -> None:
    """Check that an object frees its data about ended requests.

    `live` lets a request with this id start and end; it also gets a number.
    """
    for i in range(50):
        live(f"early-{i}", i)
    before = reachable_bytes(root)
    for i in range(200):
        live(f"request-{i}", i)
    kept = reachable_bytes(root) - before
    assert kept <= _MOST_KEPT, f"{kept} bytes are kept of 200 requests that have ended"


def describe_growth(root: object, live: Callable[[], object]) -> str | None:
    """A finding if an object keeps more memory with each round of `live`; None if it does not."""
    for _ in range(_NUM_ROUNDS):  # fill caches, which may grow up to a limit
        live()
    before = reachable_bytes(root)
    for _ in range(_NUM_ROUNDS):
        live()
    kept = reachable_bytes(root) - before
    if kept <= _FREE:
        return None
    return f"memory grows: {kept} bytes were kept after {_NUM_ROUNDS} equal rounds"


def reachable_bytes(root: object) -> int:
    """Size of all objects that an object refers to, as far as the garbage collector knows them."""
    gc.collect()
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if id(found) not in seen and not isinstance(found, type | ModuleType | FunctionType):
            seen[id(found)] = found
            waiting += gc.get_referents(found)
    return sum(map(sys.getsizeof, seen.values()))
