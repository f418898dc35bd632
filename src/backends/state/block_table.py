"""A request's block table in one group of layers, as attention backends read it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class BlockTable:
    """Grows by doubling. Keeps an entry for each block that the window has passed."""

    __slots__ = ("_num_blocks", "_num_passed", "_table")

    def __init__(self) -> None:
        self._table: npt.NDArray[np.int32] = np.empty(16, dtype=np.int32)
        self._num_blocks = 0
        self._num_passed = 0

    def __len__(self) -> int:
        return self._num_blocks

    @property
    def block_ids(self) -> npt.NDArray[np.int32]:
        """int32 [number of blocks]. The first block that the window has not passed replaces all
        earlier ones: a kernel that reads and masks them never reads another request's
        numbers."""
        return self._table[: self._num_blocks]

    def change(self, block_ids: Sequence[int], num_passed: int) -> None:
        """Append blocks; the window has passed the first `num_passed` ones. In a new table the
        blocks follow these."""
        if block_ids:
            self._grow(block_ids, num_passed)
        if num_passed != self._num_passed:
            assert num_passed < self._num_blocks, "the window has passed only earlier tokens"
            self._table[:num_passed] = self._table[num_passed]
            self._num_passed = num_passed

    def shorten(self, num_blocks: int) -> None:
        """Drop all but the first `num_blocks` entries."""
        self._num_blocks = min(self._num_blocks, num_blocks)

    def _grow(self, block_ids: Sequence[int], num_passed: int) -> None:
        start = max(self._num_blocks, num_passed)
        end = start + len(block_ids)
        if end > len(self._table):
            table = np.empty(max(end, 2 * len(self._table)), dtype=np.int32)
            table[: self._num_blocks] = self.block_ids
            self._table = table
        self._table[start:end] = block_ids
        self._num_blocks = end
