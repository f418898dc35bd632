"""FlashAttention 2: `flash_attn.flash_attn_interface` of the package flash-attn, up to 2.8.

Its kernels follow block tables only if blocks have a multiple of 256 slots. With other block sizes,
keys and values must be copied together for every layer of every step. For decodes that reads and
writes the whole context again, so such a block size is a reason against this generation. If it
computes prompts and chunks only, it makes the copies: prompts need none, chunks few.

Shape suffixes: t tokens of the step, h query heads, k KV heads, d head size, n KV blocks, s slots
of a block, m blocks of the longest block table, p sequences of prompts and chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ....core.log import get_logger
from ..base import AttentionBatch, AttentionSpec
from ..gathered import Part, build_parts
from ..gpu_reasons import reasons_of_head_size
from ..packages import Package, Source
from .generation import PagedMetadata, options_of

log = get_logger("model")

_BLOCK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashAttention2Metadata:
    """One step: decodes first, then prompts and chunks, by block tables or in parts."""

    num_decodes: int
    paged: PagedMetadata
    key_start_loc: torch.Tensor
    """int32 [p + 1], of prompts and chunks: gives the kernel the lengths of their contexts."""
    prefill_query_start_loc: torch.Tensor
    """int32 [p + 1], of prompts and chunks, from 0."""
    parts: tuple[Part, ...]
    """All sequences, if the kernels cannot follow the block tables; else empty."""


class FlashAttention2:
    """FlashAttention 2; see Generation for the methods."""

    name = "FlashAttention 2"
    majors: tuple[int, ...] = (8, 9, 10, 12)
    source: Source = Package(
        module="flash_attn.flash_attn_interface", install="pip install flash-attn, needs nvcc"
    )

    @classmethod
    def reasons_against(cls, spec: AttentionSpec, capability: tuple[int, int] | None) -> list[str]:
        reasons = reasons_of_head_size(spec)
        if spec.computes_decodes and spec.block_size % _BLOCK:
            reasons.append(
                f"decodes need blocks of a multiple of {_BLOCK} slots, not of {spec.block_size}: "
                f"set --block-size {_BLOCK}, or name another backend for decodes"
            )
        return reasons

    def __init__(self, spec: AttentionSpec) -> None:
        module = self.source.load()
        self._varlen = module.flash_attn_varlen_func
        self._with_kvcache = module.flash_attn_with_kvcache
        self._spec = spec
        self._is_paged = spec.block_size % _BLOCK == 0
        if not self._is_paged:
            log.info("attention_copies_context", backend=self.name, block_size=spec.block_size)
        self._options = options_of(spec)

    def build_metadata(self, batch: AttentionBatch) -> FlashAttention2Metadata:
        first = batch.num_decodes
        key_start_loc = torch.zeros_like(batch.query_start_loc[first:])
        torch.cumsum(batch.seq_lens[first:], dim=0, dtype=torch.int32, out=key_start_loc[1:])
        return FlashAttention2Metadata(
            num_decodes=first,
            paged=PagedMetadata.of(batch),
            key_start_loc=key_start_loc,
            prefill_query_start_loc=batch.query_start_loc[first:] - first,
            parts=() if self._is_paged else build_parts(batch, self._spec),
        )

    def attend(
        self,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        cached: tuple[torch.Tensor, torch.Tensor],
        metadata: FlashAttention2Metadata,
        out_thd: torch.Tensor,
    ) -> None:
        for part in metadata.parts:
            out_thd[part.rows] = self._varlen(
                q_thd[part.rows],
                part.gather(k_tkd, cached[0]),
                part.gather(v_tkd, cached[1]),
                cu_seqlens_q=part.query_start_loc,
                cu_seqlens_k=part.key_start_loc,
                max_seqlen_q=max(part.query_lens),
                max_seqlen_k=max(part.key_lens),
                **self._options,
            )
        if self._is_paged:
            self._decode(q_thd, cached, metadata, out_thd)
            self._prefill(q_thd, cached, metadata, out_thd)

    def _decode(
        self,
        q_thd: torch.Tensor,
        cached: tuple[torch.Tensor, torch.Tensor],
        metadata: FlashAttention2Metadata,
        out_thd: torch.Tensor,
    ) -> None:
        """Attend decodes, by a function that divides long contexts among thread blocks."""
        decodes = slice(metadata.num_decodes)
        if metadata.num_decodes == 0:
            return
        attended = self._with_kvcache(
            q_thd[decodes].unsqueeze(1),
            *cached,
            cache_seqlens=metadata.paged.seq_lens[decodes],
            block_table=metadata.paged.block_tables_bm[decodes],
            **self._options,
        )
        out_thd[decodes] = attended.squeeze(1)

    def _prefill(
        self,
        q_thd: torch.Tensor,
        cached: tuple[torch.Tensor, torch.Tensor],
        metadata: FlashAttention2Metadata,
        out_thd: torch.Tensor,
    ) -> None:
        first, paged = metadata.num_decodes, metadata.paged
        if first == paged.seq_lens.shape[0]:
            return
        out_thd[first:] = self._varlen(
            q_thd[first:],
            *cached,
            cu_seqlens_q=metadata.prefill_query_start_loc,
            cu_seqlens_k=metadata.key_start_loc,
            max_seqlen_q=paged.max_query_len,
            max_seqlen_k=paged.max_seq_len,
            block_table=paged.block_tables_bm[first:],
            **self._options,
        )
