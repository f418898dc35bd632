"""Lays out one step's plan as flat tensors: decodes first, then prompts and chunks.

Python loops only over sequences, never over tokens.

Shape suffixes: t tokens, b sequences, r sampled rows, m blocks of the longest block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ...core.plan import Grant
from ..attention.base import AttentionBatch


class InputSequence(Protocol):
    """A request's tokens and block tables, as a step needs them. RequestState implements it."""

    @property
    def block_tables(self) -> Sequence[npt.NDArray[np.int32]]:
        """Per group of layers, int32 [number of blocks]."""
        ...

    def input_token_ids(self, grant: Grant) -> Sequence[int]:
        """The tokens that the grant computes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBatch:
    """One step's inputs of the decoder and the sampler."""

    token_ids_t: torch.Tensor
    positions_t: torch.Tensor
    """The place of each token in its sequence."""
    rotary_3t: torch.Tensor | None = None
    """Rotary positions, int64; see rotary_positions. None: `positions_t` are used."""
    attention: AttentionBatch
    grant_order: Sequence[int]
    """For each sequence its index in plan.grants."""
    sampled: Sequence[int]
    """Indices of the sequences that are sampled."""
    sampled_rows_r: torch.Tensor
    """int64, the rows that get logits: for each sampled sequence the row of its last known token,
    then its drafts' rows. After all of these, the rows that score prompt tokens."""
    scored: Sequence[int]
    """Indices of the sequences with prompt tokens to score."""
    num_scored_rows: int
    """Number of rows that score prompt tokens."""


def build_input_batch(
    grants: Sequence[Grant], states: Sequence[InputSequence], block_size: int, device: torch.device
) -> InputBatch:
    """Lay out the grants' tokens. `states` are aligned with them and have advanced by them."""
    order = sorted(range(len(grants)), key=lambda i: grants[i].num_tokens != 1)
    rows = [(grants[i], states[i]) for i in order]
    lens_b = np.array([grant.num_tokens for grant, _ in rows])
    starts_b = np.array([grant.start for grant, _ in rows])
    ends_b = np.cumsum(lens_b)
    seq_lens_b = starts_b + lens_b
    positions_t = np.arange(ends_b[-1]) + np.repeat(seq_lens_b - ends_b, lens_b)
    rows_t = np.repeat(np.arange(len(rows)), lens_b)
    token_ids = chain.from_iterable(state.input_token_ids(grant) for grant, state in rows)
    sampled = [i for i, (grant, _) in enumerate(rows) if grant.samples]
    drafts_b = np.array([grant.num_draft_tokens for grant, _ in rows])
    sampled_rows_r = _sampled_rows(ends_b[sampled], drafts_b[sampled])
    scored = [i for i, (grant, _) in enumerate(rows) if grant.num_scored_tokens]
    scoring = [_scored_rows(rows[i][0], ends_b[i]) for i in scored]

    def on_device(array: npt.NDArray[np.integer], dtype: type[np.integer]) -> torch.Tensor:
        tensor = torch.from_numpy(array.astype(dtype, copy=False))
        # On a CPU, call no operation of torch: each releases the GIL, and the event loop would
        # deliver a whole step's outputs before this step begins.
        return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)

    def places(tables: Sequence[npt.NDArray[np.int32]]) -> tuple[torch.Tensor, torch.Tensor]:
        """The block tables and slots of one group of layers."""
        tables_bm = _pad(tables)
        blocks_t = tables_bm[rows_t, positions_t // block_size]
        slots_t = blocks_t * np.int64(block_size) + positions_t % block_size
        return on_device(tables_bm, np.int32), on_device(slots_t, np.int64)

    by_group = zip(*(state.block_tables for _, state in rows), strict=True)
    (tables_bm, slots_t), *others = map(places, by_group)
    attention = AttentionBatch(
        query_start_loc=on_device(np.concatenate(([0], ends_b)), np.int32),
        seq_lens=on_device(seq_lens_b, np.int32),
        block_tables_bm=tables_bm,
        slot_mapping_t=slots_t,
        query_lens_host=lens_b.tolist(),
        seq_lens_host=seq_lens_b.tolist(),
        num_decodes=int((lens_b == 1).sum()),
    )
    return InputBatch(
        token_ids_t=on_device(np.fromiter(token_ids, np.int64, ends_b[-1]), np.int64),
        positions_t=on_device(positions_t, np.int64),
        attention=_with_groups(attention, others) if others else attention,
        grant_order=order,
        sampled=sampled,
        sampled_rows_r=on_device(np.concatenate((sampled_rows_r, *scoring)), np.int64),
        scored=scored,
        num_scored_rows=sum(map(len, scoring)),
    )


def _sampled_rows(
    ends_b: npt.NDArray[np.int64], drafts_b: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The last row of each sequence and, before it, one row for each of its drafts."""
    if not drafts_b.any():
        return ends_b - 1
    counts_b = drafts_b + 1
    before_r: npt.NDArray[np.int64] = np.repeat(ends_b - counts_b.cumsum(), counts_b)
    return before_r + np.arange(len(before_r))


def _scored_rows(grant: Grant, end: int) -> npt.NDArray[np.int64]:
    """The rows that score prompt tokens, of a sequence whose last row is before `end`."""
    first = end - grant.num_tokens + grant.scored_start - grant.start
    return np.arange(first, first + grant.num_scored_tokens)


def _with_groups(
    attention: AttentionBatch, others: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> AttentionBatch:
    """Add the block tables and slots of other groups of layers."""
    batches = [
        replace(attention, block_tables_bm=tables_bm, slot_mapping_t=slots_t)
        for tables_bm, slots_t in others
    ]
    return replace(attention, other_groups=batches)


def _pad(tables: Sequence[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    """int32 [b, m], 0 past the end of each table."""
    padded_bm = np.zeros((len(tables), max(map(len, tables))), dtype=np.int32)
    for row, table in zip(padded_bm, tables, strict=True):
        row[: len(table)] = table
    return padded_bm
