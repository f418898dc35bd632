"""The attention backend of the native CPU library, with fused kernels for a paged cache.

Keys and values are read from the cache in place, once for all query heads that share them. Slots
that hold no token of a sequence may contain any value. csrc/attention/attention.h describes the
layout of the cache and the division of work.

Shape suffixes: t tokens of the step, h query heads, k KV heads, d head size, n KV blocks, s slots
of a block.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...core.interfaces import Progress
from ..attention.base import AttentionBatch, AttentionCapabilities, AttentionSpec, GraphSupport
from ..attention.kv_layout import KVLayout
from ..attention.reasons import reasons_of_dtype, reasons_of_heads
from ..machine.compiling import BuildError
from .attention_ops import AttentionOps, AttentionPlan
from .native.library import Element, load_library
from .native.structures import (
    AttentionBatchStruct,
    AttentionCallStruct,
    AttentionSpecStruct,
    RotateAndWriteCallStruct,
)

_ELEMENTS = {torch.float32: Element.F32, torch.bfloat16: Element.BF16}
_MAX_HEAD_SIZE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CPUMetadata:
    """The division of one step's work, and the tensors that the plan points into."""

    plan: AttentionPlan
    slot_mapping_t: torch.Tensor
    batch: AttentionBatch


class CPUAttention:
    """The native CPU attention backend. AttentionBackend describes the contract."""

    name = "cpu"
    graphs: GraphSupport = "never"
    """A CPU has no graphs."""
    capabilities = AttentionCapabilities(sinks=True, sees_ahead=True, builds=True)

    @classmethod
    def build(cls, spec: AttentionSpec, progress: Progress) -> None:
        """Build the native library if it can serve the spec. Raises BuildError."""
        if not _reasons_of_spec(spec):
            load_library(progress)

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        """Every reason why this backend cannot serve the spec; empty if it can.

        Builds the native library if necessary. A failed build is a reason.
        """
        reasons = _reasons_of_spec(spec)
        if not reasons:
            try:
                load_library()
            except BuildError as error:
                reasons.append(str(error))
        return reasons

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._ops = AttentionOps(load_library())
        self._sinks: Sequence[torch.Tensor] = ()
        self.struct = AttentionSpecStruct(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            block_size=spec.block_size,
            element=_ELEMENTS[spec.dtype],
            sliding_window=spec.sliding_window or 0,
            scale=spec.scale,
            logits_soft_cap=spec.logits_soft_cap or 0.0,
        )

    def use_sinks(self, sinks: Sequence[torch.Tensor]) -> None:
        """Take the sinks of each layer; see AttentionCapabilities."""
        self._sinks = [layer.float().contiguous() for layer in sinks]

    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        """[n, k, 2, s, d]: keys, then values. The numbers of a block are interleaved."""
        return KVLayout.HEADS.shape(self._spec, num_blocks)

    def build_metadata(self, batch: AttentionBatch) -> CPUMetadata:
        """Divide the step's work among the threads."""
        tables_bm = batch.block_tables_bm
        assert tables_bm.stride(1) == 1
        struct = AttentionBatchStruct(
            num_seqs=len(batch.query_lens_host),
            query_start_loc=batch.query_start_loc.data_ptr(),
            seq_lens=batch.seq_lens.data_ptr(),
            block_tables=tables_bm.data_ptr(),
            block_tables_stride=tables_bm.stride(0),
            last_keys=None if batch.last_keys_t is None else batch.last_keys_t.data_ptr(),
        )
        return CPUMetadata(
            plan=self._ops.plan(self.struct, struct),
            slot_mapping_t=batch.slot_mapping_t,
            batch=batch,
        )

    def forward(
        self,
        layer: int,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: CPUMetadata,
        out_thd: torch.Tensor,
    ) -> None:
        """Write K and V of the step's tokens into the cache, and write attention to `out_thd`."""
        q_thd, k_tkd, v_tkd = (_with_whole_tokens(x) for x in (q_thd, k_tkd, v_tkd))
        assert out_thd.is_contiguous() and kv_cache.is_contiguous()
        write = RotateAndWriteCallStruct(
            spec=self.struct,
            k=k_tkd.data_ptr(),
            k_stride=k_tkd.stride(0),
            v=v_tkd.data_ptr(),
            v_stride=v_tkd.stride(0),
            slots=metadata.slot_mapping_t.data_ptr(),
            kv_cache=kv_cache.data_ptr(),
        )
        attend = AttentionCallStruct(
            plan=metadata.plan.address,
            q=q_thd.data_ptr(),
            q_stride=q_thd.stride(0),
            kv_cache=kv_cache.data_ptr(),
            out=out_thd.data_ptr(),
            out_stride=out_thd.stride(0),
            sinks=self.sinks_address(layer),
        )
        self._ops.write_and_attend(ctypes.byref(write), k_tkd.shape[0], ctypes.byref(attend))

    def sinks_address(self, layer: int) -> int | None:
        """Address of a layer's sinks [h], float32; None without sinks."""
        return self._sinks[layer].data_ptr() if self._sinks else None

    def copy_blocks(
        self, source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
    ) -> None:
        """Copy whole blocks of one layer. `pairs`: (source block, target block), in order."""
        KVLayout.HEADS.copy_blocks(source, target, pairs)


def _reasons_of_spec(spec: AttentionSpec) -> list[str]:
    reasons = reasons_of_dtype(spec, tuple(_ELEMENTS)) + reasons_of_heads(spec)
    if spec.device.type != "cpu":
        reasons.append(f"it runs on cpu, not on {spec.device.type}")
    if spec.head_size % 16 or spec.head_size > _MAX_HEAD_SIZE:
        reasons.append(
            f"heads must have a multiple of 16 elements, at most {_MAX_HEAD_SIZE}, "
            f"not {spec.head_size}"
        )
    if spec.block_size % 8:
        reasons.append(f"blocks must have a multiple of 8 slots, not {spec.block_size}")
    if spec.scale <= 0:
        reasons.append(f"scores must be scaled by a positive factor, not {spec.scale}")
    return reasons


def _with_whole_tokens(x_tnd: torch.Tensor) -> torch.Tensor:
    """The tensor with contiguous heads per token; a copy if it is not so already.

    The decoder's projection needs no copy.
    """
    is_whole = x_tnd.stride(2) == 1 and x_tnd.stride(1) == x_tnd.shape[2]
    return x_tnd if is_whole else x_tnd.contiguous()
