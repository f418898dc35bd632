"""Tracks which slots of the KV blocks hold valid K and V of the draft model.

The target computes every token, the draft model only tokens of requests that speculate. So a block
from the prefix cache, or one swapped in from the host, may lack the draft model's content.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...core.plan import BlockCopies, CopyDirection

BlockTable = npt.NDArray[np.int32]


class DraftValidity:
    """Counts the valid slots of each block, on the device and the host, from its first slot on."""

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._device = np.zeros(num_blocks, dtype=np.int32)
        self._host = np.zeros(num_host_blocks, dtype=np.int32)

    def copy(self, copies: BlockCopies) -> None:
        """Apply copies of blocks, in order."""
        is_out = copies.direction is CopyDirection.OUT
        source, target = (self._device, self._host) if is_out else (self._host, self._device)
        for source_block, target_block in copies.pairs:
            target[target_block] = source[source_block]

    def clear(self, block_ids: Sequence[int] | BlockTable) -> None:
        """Mark these blocks as empty: they get new content."""
        self._device[np.asarray(block_ids, dtype=np.int64)] = 0

    def start(self, block_ids: Sequence[int], num_tokens: int) -> int:
        """Start a request whose first `num_tokens` tokens are in these blocks already. Returns how
        many of them, from the first on, are valid."""
        first, rest = divmod(num_tokens, self._block_size)
        if rest:
            self._device[block_ids[first]] = min(self._device[block_ids[first]], rest)
            first += 1
        self.clear(block_ids[first:])
        return self.count(np.array(block_ids[:first], dtype=np.int32))

    def count(self, table: BlockTable) -> int:
        """The number of valid tokens of a block table, from its first on."""
        valid = self._device[table]
        full = int((valid == self._block_size).cumprod().sum())
        return full * self._block_size + (int(valid[full]) if full < len(valid) else 0)

    def mark(self, table: BlockTable, start: int, end: int) -> None:
        """Mark tokens [start, end) of a block table as valid. The tokens before must be valid."""
        first, last = start // self._block_size, -(-end // self._block_size)
        ends = np.minimum(end - np.arange(first, last) * self._block_size, self._block_size)
        blocks = table[first:last]
        self._device[blocks] = np.maximum(self._device[blocks], ends)
