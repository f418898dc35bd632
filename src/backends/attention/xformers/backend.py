"""Attention by xformers: memory-efficient kernels for NVIDIA GPUs.

xformers has one kernel that follows block tables and needs only Triton: `triton_splitk`. It takes
few queries per sequence, the same number for all sequences, and blocks of a multiple of 64 slots.
It computes the decodes if block size, head size and mask allow that. For everything else keys and
values are copied together, and xformers chooses the kernel.

Shape suffixes: t tokens of the step, h query heads, k KV heads, g query heads per KV head, d head
size, l keys, n KV blocks, s slots of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ....core.log import get_logger
from ...machine.device import compute_capability
from ..base import AttentionBatch, AttentionCapabilities, AttentionSpec, GraphSupport
from ..gathered import Part, build_parts
from ..gpu_reasons import (
    reasons_of_capability,
    reasons_of_half_precision,
    reasons_of_head_size,
    reasons_of_machine,
)
from ..graph_inputs import GraphInputs
from ..kv_layout import KVLayout, StepSlots
from ..packages import Package, reason_against

log = get_logger("model")

_OPS = Package(module="xformers.ops", install="pip install xformers")
_LIBRARY = Package(module="xformers._cpp_lib", install="pip install xformers")
_PAGED_BLOCK = 64
"""`triton_splitk` takes blocks of a multiple of this number of slots."""
_PAGED_HEAD_SIZES = (16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class XformersMetadata:
    """One step: decodes by block table, then parts with copied keys and values."""

    slots: StepSlots
    num_paged: int
    """Number of decodes, at the front of the step, that are computed by block table."""
    paged_bias: Any
    parts: tuple[Part, ...]
    biases: tuple[Any, ...]
    """One for each part."""


class XformersAttention:
    """The xformers backend; see AttentionBackend for the contract.

    Graphs can capture decodes that are computed by block table. Copied keys and values cannot be
    captured, because their number is part of the shapes.
    """

    name = "xformers"
    capabilities = AttentionCapabilities(
        kv_cache_layouts=(KVLayout.HALVES, KVLayout.BLOCKS, KVLayout.HEADS), reports=True
    )

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        capability = compute_capability(spec.device)
        reasons = reasons_of_half_precision(spec, capability) + reasons_of_capability(capability)
        reasons += reasons_of_head_size(spec)
        if spec.logits_soft_cap is not None:
            reasons.append("it has no soft cap of logits")
        missing = _OPS.reason_if_missing() if reasons else _reason_of_package()
        return [*reasons, missing] if missing is not None else reasons

    @classmethod
    def on_this_machine(cls) -> list[str]:
        capability, lacks = reasons_of_machine()
        return [
            *lacks,
            *reasons_of_capability(capability),
            _reason_of_package() or "xformers: installed",
        ]

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._layout = spec.kv_cache_layout or self.capabilities.kv_cache_layouts[0]
        self._fmha = _OPS.load().fmha
        self._group_size = spec.num_heads // spec.num_kv_heads
        hindrance = _hindrance_to_paging(spec)
        self._is_paged = hindrance is None
        self.graphs: GraphSupport = "decodes" if self._is_paged else "never"
        self._graph_inputs: GraphInputs | None = None
        if hindrance is not None and spec.computes_decodes:
            log.warning(
                "attention_copies_context",
                backend=self.name,
                reason=hindrance,
                effect="every layer copies all keys and values of the decodes",
            )

    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Return [2, n, s, k, d], unless the spec names another layout."""
        return self._layout.shape(self._spec, num_blocks)

    def build_metadata(self, batch: AttentionBatch) -> XformersMetadata:
        num_paged = batch.num_decodes if self._is_paged else 0
        parts = build_parts(batch, self._spec, start=num_paged)
        return XformersMetadata(
            slots=StepSlots.of(batch.slot_mapping_t, self._spec.block_size),
            num_paged=num_paged,
            paged_bias=self._paged_bias(batch, num_paged) if num_paged else None,
            parts=parts,
            biases=tuple(self._bias(part) for part in parts),
        )

    def forward(
        self,
        layer: int,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: XformersMetadata,
        out_thd: torch.Tensor,
    ) -> None:
        cached = self._layout.views(kv_cache)
        k_tkd, v_tkd = metadata.slots.write(cached, k_tkd, v_tkd)
        if metadata.num_paged:
            paged, kernel = slice(metadata.num_paged), self._fmha.triton_splitk.FwOp
            rows = cached[0].flatten(0, 1), cached[1].flatten(0, 1)
            out_thd[paged] = self._attend(q_thd[paged], rows, metadata.paged_bias, kernel)
        for part, bias in zip(metadata.parts, metadata.biases, strict=True):
            rows = part.gather(k_tkd, cached[0]), part.gather(v_tkd, cached[1])
            out_thd[part.rows] = self._attend(q_thd[part.rows], rows, bias, None)

    def copy_blocks(
        self, source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
    ) -> None:
        self._layout.copy_blocks(source, target, pairs)

    def begin_capture(self, max_num_seqs: int, max_model_len: int) -> None:
        self._graph_inputs = GraphInputs.allocate(self._spec, max_num_seqs, max_model_len)

    def prepare_capture(self, num_seqs: int) -> XformersMetadata:
        inputs = self._graph_inputs
        assert inputs is not None, "begin_capture was not called"
        bias = self._paged_bias(inputs.batch(num_seqs), num_seqs)
        # The kernel reads lengths only here; see from_seqlens_padded_inplace of xformers.
        bias.k_seqinfo.seqlen = inputs.padded.seq_lens[:num_seqs]
        return XformersMetadata(
            slots=inputs.slots(num_seqs),
            num_paged=num_seqs,
            paged_bias=bias,
            parts=(),
            biases=(),
        )

    def prepare_replay(self, batch: AttentionBatch, num_seqs: int) -> None:
        assert self._graph_inputs is not None, "begin_capture was not called"
        self._graph_inputs.fill(batch, num_seqs, self._spec.block_size)

    def _paged_bias(self, batch: AttentionBatch, num_decodes: int) -> Any:
        masks = self._fmha.attn_bias
        return masks.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(
            q_seqlen=[1] * num_decodes,
            kv_seqlen=list(batch.seq_lens_host[:num_decodes]),
            block_tables=batch.block_tables_bm[:num_decodes],
            page_size=self._spec.block_size,
            device=batch.block_tables_bm.device,
        )

    def _bias(self, part: Part) -> Any:
        """Make the mask of causal attention within each sequence, aligned at the bottom right."""
        mask = self._fmha.attn_bias.BlockDiagonalMask.from_seqlens(
            list(part.query_lens), list(part.key_lens), device=part.query_start_loc.device
        )
        if self._spec.sliding_window is None:
            return mask.make_causal_from_bottomright()
        return mask.make_local_attention_from_bottomright(self._spec.sliding_window)

    def _attend(
        self,
        q_thd: torch.Tensor,
        rows_lkd: tuple[torch.Tensor, torch.Tensor],
        bias: Any,
        kernel: Any,
    ) -> torch.Tensor:
        """Attend over keys and values `rows_lkd`; with `kernel` None, xformers chooses one.

        Query heads are grouped by KV head, [1, t, k, g, d]; keys and values are expanded views.
        """
        group_size = self._group_size
        attended: torch.Tensor = self._fmha.memory_efficient_attention_forward(
            q_thd.view(1, q_thd.shape[0], -1, group_size, q_thd.shape[2]),
            *(x[None, :, :, None].expand(-1, -1, -1, group_size, -1) for x in rows_lkd),
            attn_bias=bias,
            scale=self._spec.scale,
            op=kernel,
        )
        return attended.squeeze(0).flatten(1, 2)


def _reason_of_package() -> str | None:
    """Return why xformers cannot be used here. Its library of kernels fits one version of CUDA; if
    it does not load, xformers itself is imported all the same."""
    reason = reason_against(_OPS)
    if reason is not None or _LIBRARY.reason_if_missing() is not None:
        return reason
    error = getattr(_LIBRARY.load(), "_cpp_library_load_exception", None)
    return None if error is None else " ".join(str(error).split("\n  Please")[0].split())


def _hindrance_to_paging(spec: AttentionSpec) -> str | None:
    """Return why decodes cannot be computed by block table, or None."""
    if spec.block_size % _PAGED_BLOCK:
        return f"blocks have {spec.block_size} slots, not a multiple of {_PAGED_BLOCK}"
    if spec.head_size not in _PAGED_HEAD_SIZES:
        return f"heads have {spec.head_size} elements, not a power of two"
    if spec.sliding_window is not None:
        return "attention has a sliding window"
    if spec.kv_cache_layout not in (None, KVLayout.HALVES):
        return "it shares the cache with a backend of another layout"
    return None
