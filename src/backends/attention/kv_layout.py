"""The memory layout of one layer's KV cache, so that two backends can share one cache.

Dimensions: 2 keys and values, n KV blocks, s slots of a block, k KV heads, d head size; shape
suffixes: t tokens of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch

_ORDER_OF_VIEWS = "2nskd"


class CacheSizes(Protocol):
    """The sizes of one layer's cache; AttentionSpec is one implementation."""

    @property
    def block_size(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_size(self) -> int: ...


class KVLayout(Enum):
    """The order of the cache's dimensions, outermost first."""

    HALVES = "2nskd"
    """All keys, then all values."""
    BLOCKS = "n2skd"
    """Block by block, so that a block is copied in one piece."""
    HEADS = "nk2sd"
    """Block by block, and head by head within a block, so that one head's keys are contiguous."""

    def shape(self, sizes: CacheSizes, num_blocks: int) -> tuple[int, ...]:
        length = {
            "2": 2,
            "n": num_blocks,
            "s": sizes.block_size,
            "k": sizes.num_kv_heads,
            "d": sizes.head_size,
        }
        return tuple(length[dimension] for dimension in self.value)

    def views(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of the keys and the values, each [n, s, k, d]; nothing is copied."""
        order = [self.value.index(dimension) for dimension in _ORDER_OF_VIEWS]
        keys_nskd, values_nskd = kv_cache.permute(order).unbind(0)
        return keys_nskd, values_nskd

    def copy_blocks(
        self, source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
    ) -> None:
        """Copy whole blocks of one layer, (source block, target block), in order.

        Copies between a GPU and pinned memory are only queued: wait for the stream before you read
        the target on the host.
        """
        dimension = self.value.index("n")
        for source_block, target_block in pairs:
            block = source.select(dimension, source_block)
            target.select(dimension, target_block).copy_(block, non_blocking=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSlots:
    """The places of a step's keys and values in the cache, for backends that write them by torch.

    All are int64 [t].
    """

    blocks_t: torch.Tensor
    offsets_t: torch.Tensor
    rows_t: torch.Tensor | None = None
    """In a captured graph, the row whose keys and values each row writes. None: its own."""

    @classmethod
    def of(cls, slot_mapping_t: torch.Tensor, block_size: int) -> StepSlots:
        """Return the block of each slot, and its place there."""
        return cls(blocks_t=slot_mapping_t // block_size, offsets_t=slot_mapping_t % block_size)

    def write(
        self,
        cached_nskd: tuple[torch.Tensor, torch.Tensor],
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values into views of the cache; return those that each row has written."""
        if self.rows_t is not None:
            k_tkd, v_tkd = (x.index_select(0, self.rows_t) for x in (k_tkd, v_tkd))
        for x_nskd, x_tkd in zip(cached_nskd, (k_tkd, v_tkd), strict=True):
            x_nskd.index_put_((self.blocks_t, self.offsets_t), x_tkd)
        return k_tkd, v_tkd
