"""The backend. Shape suffixes: t tokens of the step, q queries and l keys of a sequence, h query
heads, k KV heads, g query heads per KV head, d head size, n blocks, s slots of a block."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tokenmill.compute import (
    AttentionBatch,
    AttentionCapabilities,
    AttentionSpec,
    GraphSupport,
    KVLayout,
)

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLayout:
    """One sequence of a step."""

    rows: slice
    """Its queries among the tokens of the step."""
    slots_l: torch.Tensor
    """int64: the slots of its keys and values in the cache."""
    visible_gql: torch.Tensor
    """bool [g * q, l]: the keys that each query sees, repeated for each query head of a KV head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SdpaMetadata:
    """The slots and masks of one step, which all layers use."""

    slot_mapping_t: torch.Tensor
    sequences: tuple[SequenceLayout, ...]


class SdpaAttention:
    """See tokenmill's AttentionBackend for the contract."""

    name = "sdpa"
    graphs: GraphSupport = "never"
    capabilities = AttentionCapabilities(kv_cache_layouts=(KVLayout.HALVES,))

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        """Every reason why it cannot serve the spec; empty when it can."""
        reasons = []
        if spec.device.type not in ("cpu", "cuda"):
            reasons.append(f"it runs on cpu and cuda, not on {spec.device.type}")
        if spec.dtype not in _DTYPES:
            reasons.append(f"it computes in float32, bfloat16 or float16, not in {spec.dtype}")
        if spec.num_heads % spec.num_kv_heads:
            reasons.append(
                f"{spec.num_heads} query heads cannot share {spec.num_kv_heads} KV heads"
            )
        if spec.logits_soft_cap is not None:
            reasons.append("it cannot cap logits")
        return reasons

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._group_size = spec.num_heads // spec.num_kv_heads

    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        """[2, n, s, k, d]: keys, then values."""
        return KVLayout.HALVES.shape(self._spec, num_blocks)

    def build_metadata(self, batch: AttentionBatch) -> SdpaMetadata:
        """Slots and masks, once per step. All sizes are on the host, so nothing waits for a GPU."""
        sequences, row = [], 0
        for index, num_queries in enumerate(batch.query_lens_host):
            sequences.append(self._build_sequence(batch, index, slice(row, row + num_queries)))
            row += num_queries
        return SdpaMetadata(slot_mapping_t=batch.slot_mapping_t, sequences=tuple(sequences))

    def forward(
        self,
        layer: int,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: SdpaMetadata,
        out_thd: torch.Tensor,
    ) -> None:
        """Write K and V of the step's tokens into the cache, attend, and fill `out_thd`."""
        keys, values = kv_cache.flatten(1, 2)
        keys.index_copy_(0, metadata.slot_mapping_t, k_tkd)
        values.index_copy_(0, metadata.slot_mapping_t, v_tkd)
        for sequence in metadata.sequences:
            k_kld, v_kld = (
                x.index_select(0, sequence.slots_l).transpose(0, 1) for x in (keys, values)
            )
            out_thd[sequence.rows] = self._attend(
                q_thd[sequence.rows], k_kld, v_kld, sequence.visible_gql
            )

    def copy_blocks(
        self, source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
    ) -> None:
        """Copy whole blocks of one layer, (source block, target block), in order."""
        KVLayout.HALVES.copy_blocks(source, target, pairs)

    def _build_sequence(self, batch: AttentionBatch, index: int, rows: slice) -> SequenceLayout:
        seq_len, size = batch.seq_lens_host[index], self._spec.block_size
        position_l = torch.arange(seq_len, device=batch.block_tables_bm.device)
        blocks_l = batch.block_tables_bm[index].long()[position_l // size]
        query_q1 = position_l[seq_len - (rows.stop - rows.start) :].unsqueeze(1)
        visible_ql = position_l <= query_q1
        if self._spec.sliding_window is not None:
            visible_ql &= position_l > query_q1 - self._spec.sliding_window
        return SequenceLayout(
            rows=rows,
            slots_l=blocks_l * size + position_l % size,
            visible_gql=visible_ql.repeat(self._group_size, 1),
        )

    def _attend(
        self,
        q_qhd: torch.Tensor,
        k_kld: torch.Tensor,
        v_kld: torch.Tensor,
        visible_gql: torch.Tensor,
    ) -> torch.Tensor:
        """Attention of one sequence.

        The query heads that share a KV head become more queries of this head, so that K and V need
        not be repeated.
        """
        num_queries, _, head_size = q_qhd.shape
        q_kgqd = q_qhd.transpose(0, 1).reshape(len(k_kld), -1, head_size)
        attended = F.scaled_dot_product_attention(
            q_kgqd, k_kld, v_kld, attn_mask=visible_gql, scale=self._spec.scale
        )
        return attended.reshape(-1, num_queries, head_size).transpose(0, 1)
