"""Decodes of the torch backend: sequences with one query each, several of them in one call.

The slots of all keys of a call, padding included, are computed once per step.

Shape suffixes: b sequences, l keys, m blocks of the longest block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..base import AttentionBatch, AttentionSpec
from ..graph_inputs import GraphInputs

_SMALLEST_GROUP = 128
"""Keys: sequences with at most this many form one group, since a call costs more than padding."""
_PADDING = 16
"""The number of keys of a group is rounded up to a multiple of this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeGroup:
    """Sequences with one query each and about the same number of keys, computed in one call."""

    rows_b: torch.Tensor
    """int64: the rows of the sequences' queries."""
    slots_bl: torch.Tensor
    """int64: the cache slot of each key."""
    visible_b11l: torch.Tensor
    """bool: False where a slot is padding."""


def build_groups(batch: AttentionBatch, spec: AttentionSpec) -> tuple[DecodeGroup, ...]:
    """Group the decodes of a step; copy a few numbers to the device without waiting."""
    return tuple(_build_group(batch, spec, rows) for rows in _group_rows(batch, spec))


class DecodeGraph:
    """Inputs of captured decodes: every shape is that of sequences of the maximum length.

    The unused rows of a step repeat its first row: they read and write the same elements.
    """

    def __init__(self, spec: AttentionSpec, max_num_seqs: int, max_model_len: int) -> None:
        self._spec = spec
        self._inputs = GraphInputs.allocate(spec, max_num_seqs, max_model_len)
        shape = (max_num_seqs, _pad(num_visible(max_model_len, spec)))
        device = spec.device
        self._slots_bl = torch.zeros(shape, dtype=torch.int64, device=device)
        self._visible_bl = torch.zeros(shape, dtype=torch.bool, device=device)
        self._visible_bl[:, 0] = True
        self._own_rows_b = torch.arange(max_num_seqs, device=device)
        self.slot_mapping_b = self._inputs.padded.slot_mapping_b
        self.rows_b = self._inputs.rows_b
        """int64: the row whose keys and values each row writes."""

    def group(self, num_seqs: int) -> DecodeGroup:
        """Return the first `num_seqs` rows as a group."""
        return DecodeGroup(
            rows_b=self._own_rows_b[:num_seqs],
            slots_bl=self._slots_bl[:num_seqs],
            visible_b11l=self._visible_bl[:num_seqs, None, None],
        )

    def fill(self, batch: AttentionBatch, num_seqs: int) -> None:
        """Copy a step of at most `num_seqs` decodes into the inputs, without waiting."""
        self._inputs.fill(batch, num_seqs, self._spec.block_size)
        rows_b, inputs = self.rows_b[:num_seqs], self._inputs.padded
        slots_bl, visible_bl = _lay_out(
            inputs.seq_lens.index_select(0, rows_b),
            inputs.block_tables_bm.index_select(0, rows_b),
            self._slots_bl.shape[1],
            self._spec,
        )
        self._slots_bl[:num_seqs].copy_(slots_bl)
        self._visible_bl[:num_seqs].copy_(visible_bl)


def num_visible(seq_len: int, spec: AttentionSpec) -> int:
    """Return how many keys the last token of a sequence sees."""
    return min(seq_len, spec.sliding_window or seq_len)


def slots_of_positions(
    blocks_bm: torch.Tensor, positions_bl: torch.Tensor, block_size: int
) -> torch.Tensor:
    """Look up the cache slots of positions in each sequence's block table."""
    blocks_bl = blocks_bm.long().gather(1, positions_bl // block_size)
    return blocks_bl * block_size + positions_bl % block_size


def _group_rows(batch: AttentionBatch, spec: AttentionSpec) -> list[list[int]]:
    """Group decodes by their number of keys, rounded up to a power of two.

    So at most half of a group is padding, except in the group of the shortest sequences.
    """
    groups: dict[int, list[int]] = {}
    for row in range(batch.num_decodes):
        visible = num_visible(batch.seq_lens_host[row], spec)
        size = max(visible - 1, _SMALLEST_GROUP - 1).bit_length()
        groups.setdefault(size, []).append(row)
    return list(groups.values())


def _build_group(batch: AttentionBatch, spec: AttentionSpec, rows: Sequence[int]) -> DecodeGroup:
    rows_b = torch.tensor(rows).to(batch.block_tables_bm.device, non_blocking=True)
    longest = max(num_visible(batch.seq_lens_host[row], spec) for row in rows)
    slots_bl, visible_bl = _lay_out(
        batch.seq_lens.index_select(0, rows_b),
        batch.block_tables_bm.index_select(0, rows_b),
        _pad(longest),
        spec,
    )
    return DecodeGroup(rows_b=rows_b, slots_bl=slots_bl, visible_b11l=visible_bl[:, None, None])


def _lay_out(
    seq_lens_b: torch.Tensor, blocks_bm: torch.Tensor, num_keys: int, spec: AttentionSpec
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the slots [b, l] of the keys that each sequence's last token sees, and a mask of them.

    l is `num_keys`. The mask [b, l] is False for padding, which repeats the sequence's last key.
    """
    last_b1 = seq_lens_b.long().unsqueeze(1) - 1
    first_b1 = (last_b1 + 1 - (spec.sliding_window or num_keys)).clamp_(min=0)
    positions_bl = first_b1 + torch.arange(num_keys, device=seq_lens_b.device)
    visible_bl = positions_bl <= last_b1
    positions_bl = torch.minimum(positions_bl, last_b1)
    return slots_of_positions(blocks_bm, positions_bl, spec.block_size), visible_bl


def _pad(num_keys: int) -> int:
    return -(-num_keys // _PADDING) * _PADDING
