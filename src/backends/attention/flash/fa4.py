"""FlashAttention 4: `flash_attn.cute` of the package flash-attn-4, compiled at its first use.

It follows block tables of any block size, and takes decodes, prompts and chunks in one call. On
Hopper it cannot divide one long context among thread blocks, so FlashAttention 3 is preferred
there. If blocks fit its tiles, it reads whole blocks and multiplies slots without a token by zero.
So the cache must hold finite numbers everywhere, as a cache that was zeroed at the start does.

Shape suffixes: t tokens of the step, h query heads, k KV heads, d head size, n KV blocks, s slots
of a block.
"""

from __future__ import annotations

import torch

from ..base import AttentionBatch, AttentionSpec
from ..gpu_reasons import reasons_of_head_size
from ..packages import Package, Source
from .generation import PagedMetadata


class FlashAttention4:
    """FlashAttention 4; see Generation for the methods."""

    name = "FlashAttention 4"
    majors: tuple[int, ...] = (9, 10, 11)
    source: Source = Package(module="flash_attn.cute", install="pip install flash-attn-4")

    @classmethod
    def reasons_against(cls, spec: AttentionSpec, capability: tuple[int, int] | None) -> list[str]:
        reasons = reasons_of_head_size(spec)
        is_blackwell = capability is not None and capability[0] in (10, 11)
        if not reasons and is_blackwell and spec.head_size > 128 and spec.head_size != 256:
            reasons.append(
                f"on this GPU heads must have at most 128 elements, or 256, not {spec.head_size}"
            )
        return reasons

    def __init__(self, spec: AttentionSpec) -> None:
        self._varlen = self.source.load().flash_attn_varlen_func
        before = None if spec.sliding_window is None else spec.sliding_window - 1
        self._options = {
            "softmax_scale": spec.scale,
            "causal": True,
            "window_size": (before, None if before is None else 0),
            "softcap": spec.logits_soft_cap or 0.0,
        }

    def build_metadata(self, batch: AttentionBatch) -> PagedMetadata:
        return PagedMetadata.of(batch)

    def attend(
        self,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        cached: tuple[torch.Tensor, torch.Tensor],
        metadata: PagedMetadata,
        out_thd: torch.Tensor,
    ) -> None:
        attended, _ = self._varlen(
            q_thd,
            *cached,
            cu_seqlens_q=metadata.query_start_loc,
            seqused_k=metadata.seq_lens,
            max_seqlen_q=metadata.max_query_len,
            max_seqlen_k=metadata.max_seq_len,
            page_table=metadata.block_tables_bm,
            **self._options,
        )
        out_thd.copy_(attended)
