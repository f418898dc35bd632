"""Steps for kernels that cannot follow block tables: they get keys and values without gaps.

Keys and values are copied out of the cache for each call, one sequence after the other. That costs
the memory traffic of the context several times over, which is bearable for prompts and chunks and
slow for decodes. Prompts without earlier context need no copy. Only slots that hold tokens of a
sequence are read, so other slots may hold anything, even NaN.

Shape suffixes: t tokens of the step, p sequences of a part, k KV heads, d head size, l keys of a
part, n KV blocks, s slots of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from .base import AttentionBatch, AttentionSpec

_MAX_KEYS = 1 << 17
"""Maximum of keys copied for one call, which bounds the memory. A longer sequence goes alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Consecutive sequences of a step, computed in one call."""

    rows: slice
    """The sequences' queries among the tokens of the step."""
    query_lens: Sequence[int]
    key_lens: Sequence[int]
    """Per sequence, the number of keys that at least one query sees; these are its last keys."""
    query_start_loc: torch.Tensor
    """int32 [p + 1], on the device, from 0."""
    key_start_loc: torch.Tensor
    """int32 [p + 1], on the device, from 0."""
    slots: tuple[torch.Tensor, torch.Tensor] | None
    """int64 [l] each: block and slot of each key. None: the step's own tokens are all keys."""

    def gather(self, fresh_tkd: torch.Tensor, cached_nskd: torch.Tensor) -> torch.Tensor:
        """Return keys or values [l, k, d], from the step's own tokens or from the cache."""
        return fresh_tkd[self.rows] if self.slots is None else cached_nskd[self.slots]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Sequences [start, end) of a batch. Either all are whole prompts, or none is."""

    start: int
    end: int
    is_whole: bool


def build_parts(batch: AttentionBatch, spec: AttentionSpec, start: int = 0) -> tuple[Part, ...]:
    """Divide the sequences of a step from index `start` on into parts; never wait for the GPU."""
    key_lens = [
        _num_keys(queries, keys, spec.sliding_window)
        for queries, keys in zip(batch.query_lens_host, batch.seq_lens_host, strict=True)
    ]
    first_rows = [0, *accumulate(batch.query_lens_host)]
    return tuple(
        _build_part(batch, spec.block_size, span, key_lens[span.start : span.end], first_rows)
        for span in _ranges(batch, key_lens, start)
    )


def _num_keys(num_queries: int, seq_len: int, window: int | None) -> int:
    return seq_len if window is None else min(seq_len, num_queries + window - 1)


def _ranges(batch: AttentionBatch, key_lens: Sequence[int], start: int) -> list[_Range]:
    ranges: list[_Range] = []
    num_keys = 0
    for index in range(start, len(key_lens)):
        is_whole = 1 < batch.query_lens_host[index] == batch.seq_lens_host[index]
        last = ranges[-1] if ranges else None
        num_keys += key_lens[index]
        if last is None or last.is_whole != is_whole or (num_keys > _MAX_KEYS and not is_whole):
            ranges.append(_Range(start=index, end=index + 1, is_whole=is_whole))
            num_keys = key_lens[index]
        else:
            ranges[-1] = _Range(start=last.start, end=index + 1, is_whole=is_whole)
    return ranges


def _build_part(
    batch: AttentionBatch,
    block_size: int,
    span: _Range,
    key_lens: Sequence[int],
    first_rows: Sequence[int],
) -> Part:
    own = slice(span.start, span.end)
    query_start_loc = batch.query_start_loc[span.start : span.end + 1] - first_rows[span.start]
    if span.is_whole:
        key_lens, key_start_loc, slots = batch.query_lens_host[own], query_start_loc, None
    else:
        starts = torch.tensor([0, *accumulate(key_lens)])
        starts = starts.to(batch.query_start_loc.device, non_blocking=True)
        key_start_loc = starts.int()
        slots = _slots(batch, block_size, own, starts, sum(key_lens))
    return Part(
        rows=slice(first_rows[span.start], first_rows[span.end]),
        query_lens=batch.query_lens_host[own],
        key_lens=key_lens,
        query_start_loc=query_start_loc,
        key_start_loc=key_start_loc,
        slots=slots,
    )


def _slots(
    batch: AttentionBatch, block_size: int, own: slice, starts: torch.Tensor, num_keys: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Look up the block and slot of each sequence's last keys in the block tables."""
    owners_l = torch.repeat_interleave(starts.diff(), output_size=num_keys)
    shifts = batch.seq_lens[own] - starts[1:]
    positions_l = torch.arange(num_keys, device=starts.device) + shifts.index_select(0, owners_l)
    blocks_l = batch.block_tables_bm[own][owners_l, positions_l // block_size]
    return blocks_l.long(), positions_l % block_size
