"""How much memory a provider keeps alive."""

from __future__ import annotations

import gc
import sys
from types import FunctionType, ModuleType


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
