"""How the contexts of decodes are divided over a GPU: see Split of csrc/sequence.h."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_BLOCKS_PER_PROCESSOR = 3
"""As many as find room on one at a time, by registers and shared memory."""
_SMALLEST = 256
"""Keys of a split: with fewer, merging costs more than it saves."""
_MULTIPLE = 64
_MAX_BYTES = 64 << 20
"""For partial results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Memory for the splits of some decodes, shared by all layers."""

    size: torch.Tensor
    """int32 [1], on the device: the keys of a split."""
    max_splits: int
    partial_sums: torch.Tensor
    """float32 [sequences, query heads, max_splits, head size], or more."""
    partial_stats: torch.Tensor
    """float32 [sequences, query heads, max_splits, 2], or more: maximum and sum."""


def choose_split_size(
    visible: Sequence[int], blocks_per_split: int, num_processors: int, max_splits: int
) -> int:
    """Keys of a split, so that all splits together about fill the device once.

    `visible` are the keys of each sequence. One size for all of them divides only the long ones.
    """
    total = sum(visible) * blocks_per_split
    even = -(-total // (num_processors * _BLOCKS_PER_PROCESSOR))
    least = -(-max(visible, default=0) // max_splits)
    return -(-max(even, least, _SMALLEST) // _MULTIPLE) * _MULTIPLE


def count_splits(visible: Sequence[int], size: int) -> int:
    """Splits of the longest sequence."""
    return max(1, -(-max(visible, default=0) // size))


def most_splits(num_seqs: int, num_heads: int, head_size: int) -> int:
    """As many as there is memory for."""
    return max(1, _MAX_BYTES // (max(num_seqs, 1) * num_heads * (head_size + 2) * 4))


def splits_to_capture(num_seqs: int, blocks_per_split: int, num_processors: int) -> int:
    """For a graph, which is replayed with contexts of any length: enough to fill the device if all
    are alike, and some for one that is longer."""
    wanted = 2 * num_processors * _BLOCKS_PER_PROCESSOR
    return max(4, -(-wanted // (num_seqs * blocks_per_split)))


def allocate_splits(
    num_seqs: int, num_heads: int, head_size: int, max_splits: int, size: int, device: torch.device
) -> Splits:
    """Their memory; what is in it does not matter."""
    shape = (num_seqs, num_heads, max_splits)
    return Splits(
        size=torch.full((1,), size, dtype=torch.int32, device=device),
        max_splits=max_splits,
        partial_sums=torch.empty((*shape, head_size), dtype=torch.float32, device=device),
        partial_stats=torch.empty((*shape, 2), dtype=torch.float32, device=device),
    )
