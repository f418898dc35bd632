"""Inputs of captured graphs of decodes: memory at addresses that stay the same in every replay.

A graph is captured for a number of sequences and replayed for that number or fewer.

Shape suffixes: b sequences, m blocks of the longest block table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .base import AttentionBatch, AttentionSpec
from .kv_layout import StepSlots


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedInputs:
    """Inputs for kernels that write nothing for slot -1 and attend nothing for length 0."""

    seq_lens: torch.Tensor
    block_tables_bm: torch.Tensor
    slot_mapping_b: torch.Tensor

    @classmethod
    def allocate(cls, spec: AttentionSpec, max_num_seqs: int, max_model_len: int) -> PaddedInputs:
        """Allocate inputs for the largest graph; until `fill`, all sequences are padding."""
        shape = (max_num_seqs, -(-max_model_len // spec.block_size))
        return cls(
            seq_lens=torch.zeros(max_num_seqs, dtype=torch.int32, device=spec.device),
            block_tables_bm=torch.zeros(shape, dtype=torch.int32, device=spec.device),
            slot_mapping_b=torch.full((max_num_seqs,), -1, dtype=torch.int64, device=spec.device),
        )

    def clear(self) -> None:
        """Make all sequences padding."""
        self.seq_lens.zero_()
        self.slot_mapping_b.fill_(-1)

    def fill(self, batch: AttentionBatch, num_seqs: int) -> None:
        """Copy a step of at most `num_seqs` decodes into the inputs; the other rows are padding."""
        used = batch.num_decodes
        assert used == len(batch.query_lens_host) <= num_seqs
        self.seq_lens[:used].copy_(batch.seq_lens)
        self.seq_lens[used:num_seqs].zero_()
        self.block_tables_bm[:used, : batch.block_tables_bm.shape[1]].copy_(batch.block_tables_bm)
        self.slot_mapping_b[:used].copy_(batch.slot_mapping_t)
        self.slot_mapping_b[used:num_seqs].fill_(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInputs:
    """Inputs for backends that write keys and values by torch.

    Torch's operations cannot leave a row out, so the unused rows of a replay write the same keys
    and values as the first row again.
    """

    padded: PaddedInputs
    query_start_loc: torch.Tensor
    blocks_b: torch.Tensor
    offsets_b: torch.Tensor
    rows_b: torch.Tensor
    """int64: the row whose keys and values each row writes."""
    max_model_len: int

    @classmethod
    def allocate(cls, spec: AttentionSpec, max_num_seqs: int, max_model_len: int) -> GraphInputs:
        """Allocate inputs for the largest graph; until `fill`, all rows write slot 0 of block 0."""
        padded = PaddedInputs.allocate(spec, max_num_seqs, max_model_len)
        padded.slot_mapping_b.zero_()
        places = [torch.zeros_like(padded.slot_mapping_b) for _ in range(3)]
        return cls(
            padded=padded,
            query_start_loc=torch.arange(max_num_seqs + 1, dtype=torch.int32, device=spec.device),
            blocks_b=places[0],
            offsets_b=places[1],
            rows_b=places[2],
            max_model_len=max_model_len,
        )

    def slots(self, num_seqs: int) -> StepSlots:
        """Return the places of the keys and values of `num_seqs` decodes."""
        return StepSlots(
            blocks_t=self.blocks_b[:num_seqs],
            offsets_t=self.offsets_b[:num_seqs],
            rows_t=self.rows_b[:num_seqs],
        )

    def batch(self, num_seqs: int) -> AttentionBatch:
        """Return a step of `num_seqs` decodes; for the host, each has `max_model_len` tokens."""
        return AttentionBatch(
            query_start_loc=self.query_start_loc[: num_seqs + 1],
            seq_lens=self.padded.seq_lens[:num_seqs],
            block_tables_bm=self.padded.block_tables_bm[:num_seqs],
            slot_mapping_t=self.padded.slot_mapping_b[:num_seqs],
            query_lens_host=[1] * num_seqs,
            seq_lens_host=[self.max_model_len] * num_seqs,
            num_decodes=num_seqs,
        )

    def fill(self, batch: AttentionBatch, num_seqs: int, block_size: int) -> None:
        """Copy a step of at most `num_seqs` decodes into the inputs; unused rows have no keys."""
        used, slots_b = batch.num_decodes, self.padded.slot_mapping_b
        assert used > 0
        self.padded.fill(batch, num_seqs)
        slots_b[used:num_seqs].copy_(batch.slot_mapping_t[:1].expand(num_seqs - used))
        torch.div(slots_b, block_size, rounding_mode="floor", out=self.blocks_b)
        torch.remainder(slots_b, block_size, out=self.offsets_b)
        self.rows_b[:used].copy_(self.query_start_loc[:used])
        self.rows_b[used:num_seqs].zero_()
