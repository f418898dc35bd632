"""A list of block ids with O(1) removal at any place, and exact undo of a removal."""

from __future__ import annotations

from collections.abc import Iterator


class BlockList:
    """Doubly linked list over block ids 0 .. capacity - 1, in two integer arrays.

    `remove` returns the block's predecessor, and `restore` inserts the block after it again. This
    is exact only if changes are undone in reverse order, as the rollback of a step does.
    """

    __slots__ = ("_end", "_len", "_next", "_prev")

    def __init__(self, capacity: int) -> None:
        self._end = capacity
        self._next = list(range(capacity + 1))
        self._prev = list(range(capacity + 1))
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[int]:
        following, end = self._next, self._end
        block = following[end]
        while block != end:
            yield block
            block = following[block]

    @property
    def first(self) -> int:
        """The oldest block. The list must not be empty."""
        assert self._len, "no block is left to give"
        return self._next[self._end]

    def append(self, block: int) -> None:
        """Add a block as the youngest."""
        self._insert(block, self._prev[self._end])

    def remove(self, block: int) -> int:
        """Remove a block; returns its predecessor, which `restore` needs to undo this."""
        before, after = self._prev[block], self._next[block]
        self._next[before], self._prev[after] = after, before
        self._len -= 1
        return before

    def restore(self, block: int, before: int) -> None:
        """Insert a block again after `before`, its predecessor when it was removed."""
        self._insert(block, before)

    def _insert(self, block: int, before: int) -> None:
        after = self._next[before]
        self._prev[block], self._next[block] = before, after
        self._next[before] = self._prev[after] = block
        self._len += 1
