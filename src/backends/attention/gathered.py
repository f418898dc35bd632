"""Steps for kernels that cannot follow block tables: keys and values one sequence after the other.

What lies in the cache is copied together for each call, which costs the memory traffic of the
context several times over: bearable for prompts and chunks, slow for decodes. Prompts without
earlier context need no copy. Only slots that hold tokens of a sequence are read, so whatever lies
in the others, even NaN, does no harm.

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
"""Keys copied together at a time, unless one sequence has more: bounds the memory for copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Consecutive sequences of a step, computed in one call."""

    rows: slice
    """Their queries among the tokens of the step."""
    query_lens: Sequence[int]
    key_lens: Sequence[int]
    """Keys that at least one query of the sequence sees: its last ones."""
    query_start_loc: torch.Tensor
    """int32 [p + 1], on the device, from 0."""
    key_start_loc: torch.Tensor
    """int32 [p + 1], on the device, from 0."""
    slots: tuple[torch.Tensor, torch.Tensor] | None
    """int64 [l] each: block and slot of each key; None when the queries' own are all there are."""

    def gather(self, fresh_tkd: torch.Tensor, cached_nskd: torch.Tensor) -> torch.Tensor:
        """Keys, or values, [l, k, d]: of the step's own or those in the cache."""
        return fresh_tkd[self.rows] if self.slots is None else cached_nskd[self.slots]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Sequences [start, end) of a batch: all of them whole prompts, or none."""

    start: int
    end: int
    is_whole: bool


def build_parts(batch: AttentionBatch, spec: AttentionSpec, start: int = 0) -> tuple[Part, ...]:
    """Parts for the sequences of a step from number `start` on; waits for nothing on the device."""
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
    """Block and slot of each sequence's last keys, through the block tables."""
    owners_l = torch.repeat_interleave(starts.diff(), output_size=num_keys)
    shifts = batch.seq_lens[own] - starts[1:]
    positions_l = torch.arange(num_keys, device=starts.device) + shifts.index_select(0, owners_l)
    blocks_l = batch.block_tables_bm[own][owners_l, positions_l // block_size]
    return blocks_l.long(), positions_l % block_size
