"""FlashAttention 3, for Hopper GPUs: by its own interface, or by the operators that vLLM brings.

Both follow block tables of any block size, and take decodes, prompts and chunks in one call. If the
block size is a multiple of their tile (128 slots for heads of 128), they may read whole blocks and
multiply slots without a token by zero (`get_pagedkv_tma` of hopper/heuristics.h). So the cache must
hold finite numbers everywhere, as a cache that was zeroed at the start does.

Shape suffixes: t tokens of the step, h query heads, k KV heads, d head size, n KV blocks, s slots
of a block.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..base import AttentionBatch, AttentionSpec
from ..gpu_reasons import reasons_of_head_size
from ..packages import Package, PackageError, Source, describe
from .generation import PagedMetadata, options_of, window


class FlashAttention3:
    """The module `flash_attn_interface` of FlashAttention's folder hopper; see Generation."""

    name = "FlashAttention 3"
    majors: tuple[int, ...] = (9,)
    source: Source = Package(
        module="flash_attn_interface", install="built from FlashAttention's folder hopper"
    )

    @classmethod
    def reasons_against(cls, spec: AttentionSpec, capability: tuple[int, int] | None) -> list[str]:
        return reasons_of_head_size(spec)

    def __init__(self, spec: AttentionSpec) -> None:
        self._with_kvcache = self.source.load().flash_attn_with_kvcache
        self._options = options_of(spec)

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
        out_thd.copy_(
            self._with_kvcache(
                q_thd,
                *cached,
                cache_seqlens=metadata.seq_lens,
                page_table=metadata.block_tables_bm,
                cu_seqlens_q=metadata.query_start_loc,
                max_seqlen_q=metadata.max_query_len,
                **self._options,
            )
        )


class OperatorLibrary:
    """vLLM's build of FlashAttention 3: a library of torch operators, `_vllm_fa3_C`.

    It is loaded without importing vLLM. If the program has already loaded the library, vLLM need
    not be installed.
    """

    def reason_if_missing(self) -> str | None:
        """Say that the library is not installed, or return None; loads nothing."""
        if _operators() is not None or self._find() is not None:
            return None
        return "vLLM's _vllm_fa3_C is not installed (pip install vllm)"

    def load(self) -> Any:
        """Return the operator `fwd`. Raises PackageError with the reason if it cannot be loaded."""
        missing = self.reason_if_missing()
        if missing is not None:
            raise PackageError(missing)
        file = self._find()
        if _operators() is None and file is not None:
            try:
                torch.ops.load_library(str(file))  # type: ignore[no-untyped-call]
            except Exception as error:  # built for another torch or CUDA, for example
                raise PackageError(f"{file} cannot be loaded: {describe(error)}") from error
        operator = _operators()
        if operator is None:
            raise PackageError(f"{file} has no operator _vllm_fa3_C.fwd")
        return operator

    def _find(self) -> Path | None:
        try:
            spec = find_spec("vllm")  # a name without a dot: nothing is imported
        except ValueError:
            return None
        folders = (spec.submodule_search_locations or ()) if spec is not None else ()
        files = (
            f for folder in folders for f in Path(folder).glob("vllm_flash_attn/_vllm_fa3_C*.so")
        )
        return next(files, None)


class VllmFlashAttention3:
    """FlashAttention 3 as vLLM 0.20 and later compile it; see Generation."""

    name = "FlashAttention 3 of vLLM"
    majors: tuple[int, ...] = (9,)
    source: Source = OperatorLibrary()

    @classmethod
    def reasons_against(cls, spec: AttentionSpec, capability: tuple[int, int] | None) -> list[str]:
        return reasons_of_head_size(spec)

    def __init__(self, spec: AttentionSpec) -> None:
        self._operator = self.source.load().default
        left, right = window(spec)
        self._constants = {
            "softmax_scale": spec.scale,
            "is_causal": True,
            "window_size_left": left,
            "window_size_right": right,
            "softcap": spec.logits_soft_cap or 0.0,
            "is_rotary_interleaved": True,
            "num_splits": 0,  # the library chooses
            "sm_margin": 0,
            "cp_world_size": 1,
            "cp_rank": 0,
        }
        # The operator's optional arguments differ between versions of vLLM.
        self._names = [argument.name for argument in self._operator._schema.arguments]

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
        keys, values = cached
        given = self._constants | {
            "q": q_thd,
            "k": keys,
            "v": values,
            "out": out_thd,
            "cu_seqlens_q": metadata.query_start_loc,
            "seqused_k": metadata.seq_lens,
            "max_seqlen_q": metadata.max_query_len,
            "max_seqlen_k": metadata.max_seq_len,
            "page_table": metadata.block_tables_bm,
        }
        self._operator(*map(given.get, self._names))


def _operators() -> Any:
    """Return the operator `fwd` if its library is loaded, else None."""
    return getattr(torch.ops._vllm_fa3_C, "fwd", None)
