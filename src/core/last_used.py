"""Keeps the values that were used last, within a number and a size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LastUsed(Generic[Key, Value]):
    """A mapping that forgets the values that were not used for longest. Safe on several threads.

    The sizes of all values together are at most `max_size`, in the caller's unit. The value that
    was added last stays even if it is larger.
    """

    def __init__(self, *, max_count: int, max_size: int) -> None:
        self._max_count, self._max_size = max_count, max_size
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """The value, which counts as used now; None if it is not kept."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keep a value; forget others until it fits."""
        with self._lock:
            if key in self._kept:
                self._size -= self._kept.pop(key)[1]
            self._kept[key] = value, size
            self._size += size
            while len(self._kept) > 1 and self._is_full:
                self._size -= self._kept.popitem(last=False)[1][1]

    @property
    def _is_full(self) -> bool:
        return len(self._kept) > self._max_count or self._size > self._max_size
