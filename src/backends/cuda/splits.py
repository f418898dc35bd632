"""Divides the contexts of decodes over the processors of a GPU; see Split of csrc/sequence.h."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_BLOCKS_PER_PROCESSOR = 3
"""Thread blocks that fit on a processor at a time, by registers and shared memory."""
_SMALLEST = 256
"""Keys of a split: with fewer, merging costs more than the split saves."""
_MULTIPLE = 64
"""The keys of a split are rounded up to a multiple of this number."""
_MAX_BYTES = 64 << 20
"""Maximum memory for partial results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Memory for the splits of some decodes, shared by all layers."""

    size: torch.Tensor
    """int32 [1], on the device: number of keys of a split."""
    max_splits: int
    partial_sums: torch.Tensor
    """float32 [sequences, query heads, max_splits, head size], or more."""
    partial_stats: torch.Tensor
    """float32 [sequences, query heads, max_splits, 2], or more: maximum and sum."""


def choose_split_size(
    visible: Sequence[int], blocks_per_split: int, num_processors: int, max_splits: int
) -> int:
    """Return the number of keys of a split. All splits together fill the device about once.

    `visible` has the number of keys of each sequence. All sequences share one size, so only long
    ones are divided.
    """
    total = sum(visible) * blocks_per_split
    even = -(-total // (num_processors * _BLOCKS_PER_PROCESSOR))
    least = -(-max(visible, default=0) // max_splits)
    return -(-max(even, least, _SMALLEST) // _MULTIPLE) * _MULTIPLE


def count_splits(visible: Sequence[int], size: int) -> int:
    """Return the number of splits of the longest sequence."""
    return max(1, -(-max(visible, default=0) // size))


def most_splits(num_seqs: int, num_heads: int, head_size: int) -> int:
    """Return the maximum of splits per sequence whose results fit into the memory limit."""
    return max(1, _MAX_BYTES // (max(num_seqs, 1) * num_heads * (head_size + 2) * 4))


def splits_to_capture(num_seqs: int, blocks_per_split: int, num_processors: int) -> int:
    """Return the number of splits per sequence for a graph, whatever the contexts' lengths.

    They fill the device if all contexts are equally long, and suffice for a single longer one.
    """
    wanted = 2 * num_processors * _BLOCKS_PER_PROCESSOR
    return max(4, -(-wanted // (num_seqs * blocks_per_split)))


def allocate_splits(
    num_seqs: int, num_heads: int, head_size: int, max_splits: int, size: int, device: torch.device
) -> Splits:
    """Allocate uninitialized memory for splits."""
    shape = (num_seqs, num_heads, max_splits)
    return Splits(
        size=torch.full((1,), size, dtype=torch.int32, device=device),
        max_splits=max_splits,
        partial_sums=torch.empty((*shape, head_size), dtype=torch.float32, device=device),
        partial_stats=torch.empty((*shape, 2), dtype=torch.float32, device=device),
    )
