"""What a captured graph of decodes reads, for backends that write keys and values by torch.

A graph is captured for a number of sequences and replayed for as many or fewer. Torch's operations
cannot leave a row out, so the rows that a step lacks write once more what the first one writes.

Shape suffixes: b sequences, m blocks of the longest block table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .base import AttentionBatch, AttentionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInputs:
    """Memory on the device, for as many decodes as any graph has."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables_bm: torch.Tensor
    slot_mapping_b: torch.Tensor
    blocks_b: torch.Tensor
    offsets_b: torch.Tensor
    rows_b: torch.Tensor
    """int64: the row whose keys and values each row writes."""
    max_model_len: int

    @classmethod
    def allocate(cls, spec: AttentionSpec, max_num_seqs: int, max_model_len: int) -> GraphInputs:
        """All zero: until `fill`, rows write the slot 0 of block 0, so capture before you serve."""
        device, num_blocks = spec.device, -(-max_model_len // spec.block_size)
        places = [torch.zeros(max_num_seqs, dtype=torch.int64, device=device) for _ in range(4)]
        return cls(
            query_start_loc=torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device),
            seq_lens=torch.zeros(max_num_seqs, dtype=torch.int32, device=device),
            block_tables_bm=torch.zeros(
                (max_num_seqs, num_blocks), dtype=torch.int32, device=device
            ),
            slot_mapping_b=places[0],
            blocks_b=places[1],
            offsets_b=places[2],
            rows_b=places[3],
            max_model_len=max_model_len,
        )

    def batch(self, num_seqs: int) -> AttentionBatch:
        """A step of so many decodes, each as long as can be for all that the host knows."""
        return AttentionBatch(
            query_start_loc=self.query_start_loc[: num_seqs + 1],
            seq_lens=self.seq_lens[:num_seqs],
            block_tables_bm=self.block_tables_bm[:num_seqs],
            slot_mapping_t=self.slot_mapping_b[:num_seqs],
            query_lens_host=[1] * num_seqs,
            seq_lens_host=[self.max_model_len] * num_seqs,
            num_decodes=num_seqs,
        )

    def fill(self, batch: AttentionBatch, num_seqs: int, block_size: int) -> None:
        """Put a step of at most `num_seqs` decodes in; sequences that it lacks have no keys."""
        used = batch.num_decodes
        assert 0 < used == len(batch.query_lens_host) <= num_seqs
        self.seq_lens[:used].copy_(batch.seq_lens)
        self.seq_lens[used:num_seqs].zero_()
        self.block_tables_bm[:used, : batch.block_tables_bm.shape[1]].copy_(batch.block_tables_bm)
        self.slot_mapping_b[:used].copy_(batch.slot_mapping_t)
        self.slot_mapping_b[used:num_seqs].copy_(batch.slot_mapping_t[:1].expand(num_seqs - used))
        torch.div(self.slot_mapping_b, block_size, rounding_mode="floor", out=self.blocks_b)
        torch.remainder(self.slot_mapping_b, block_size, out=self.offsets_b)
        self.rows_b[:used].copy_(self.query_start_loc[:used])
        self.rows_b[used:num_seqs].zero_()
