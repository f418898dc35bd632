"""Launches the Triton kernels with their grids and constants; `TritonOps` imports triton."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..base import AttentionSpec
from .tiles import MAX_SPLITS, Tile, chunk_tile, decode_tile, power_of_two

_LOG2_E = math.log2(math.e)
_WRITTEN_TOKENS = 16
"""Tokens that one program writes into the cache."""
OPTIONS: Mapping[str, Any] = {"enable_fp_fusion": True}
"""For every launch: a product and a sum are one instruction. Triton 3.10 changes its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of the attention kernel for all decodes or all chunks, the same in every layer."""

    first_row: int
    num_rows: int
    num_tiles: int
    tiles: torch.Tensor | None
    """int32 [tiles, 4], see `tile_chunks`; None for decodes, where tile i is sequence i."""
    seq_lens: torch.Tensor | None
    """int32 [b], of decodes; None for chunks."""
    block_tables_bm: torch.Tensor
    num_splits: int
    partial_out: torch.Tensor | None
    """float32 [t, h, splits, d]: each split's output; None without splits."""
    partial_lse: torch.Tensor | None
    """float32 [t, h, splits]: log2 of each split's sum of exp2(score); None without splits."""


class TritonOps:
    """The three kernels, for one spec."""

    def __init__(self, spec: AttentionSpec) -> None:
        from . import kernels as triton_kernels

        self._kernels = triton_kernels
        self._spec = spec
        self._score_scale = score_scale(spec)

    def write(
        self,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        slot_mapping_t: torch.Tensor,
    ) -> None:
        """Write each token's K and V to its slot of the cache [n, s, k, d]; skip negative slots."""
        num_tokens = k_tkd.shape[0]
        grid = (-(-num_tokens // _WRITTEN_TOKENS), self._spec.num_kv_heads)
        self._kernels.write_kv_kernel[grid](
            k_tkd,
            v_tkd,
            keys,
            values,
            slot_mapping_t,
            num_tokens,
            *k_tkd.stride()[:2],
            *v_tkd.stride()[:2],
            *keys.stride()[:3],
            **write_constants(self._spec),
            **OPTIONS,
        )

    def attend(
        self,
        launch: Launch,
        q_thd: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out_thd: torch.Tensor,
    ) -> None:
        """Fill `out_thd`; `q_thd` and `out_thd` have only the launch's rows."""
        spec, num_splits = self._spec, launch.num_splits
        is_decode = launch.tiles is None
        tile = decode_tile(spec) if is_decode else chunk_tile(spec)
        self._kernels.attend_kernel[(launch.num_tiles, spec.num_kv_heads, num_splits)](
            q_thd,
            keys,
            values,
            out_thd,
            launch.partial_out,
            launch.partial_lse,
            launch.tiles,
            launch.seq_lens,
            launch.block_tables_bm,
            self._score_scale,
            *q_thd.stride()[:2],
            *out_thd.stride()[:2],
            *keys.stride()[:3],
            launch.block_tables_bm.stride(0),
            **attend_constants(spec, tile, is_decode=is_decode, is_split=num_splits > 1),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            **OPTIONS,
        )
        if num_splits > 1:
            self._kernels.merge_splits_kernel[(launch.num_rows, spec.num_heads)](
                launch.partial_out,
                launch.partial_lse,
                out_thd,
                num_splits,
                *out_thd.stride()[:2],
                **merge_constants(spec),
                **OPTIONS,
            )


def score_scale(spec: AttentionSpec) -> float:
    """Return the factor of q @ k: the result is in log2 units, or in fractions of a soft cap."""
    return spec.scale / spec.logits_soft_cap if spec.logits_soft_cap else spec.scale * _LOG2_E


def write_constants(spec: AttentionSpec) -> dict[str, Any]:
    """Return the compile-time constants of write_kv_kernel."""
    return {
        "BLOCK_SIZE": spec.block_size,
        "HEAD_SIZE": spec.head_size,
        "PADDED_HEAD_SIZE": power_of_two(spec.head_size),
        "TILE_TOKENS": _WRITTEN_TOKENS,
    }


def attend_constants(
    spec: AttentionSpec, tile: Tile, *, is_decode: bool, is_split: bool
) -> dict[str, Any]:
    """Return the compile-time constants of attend_kernel."""
    return {
        "IS_DECODE": is_decode,
        "IS_SPLIT": is_split,
        "NUM_HEADS": spec.num_heads,
        "GROUP_SIZE": spec.num_heads // spec.num_kv_heads,
        "HEAD_SIZE": spec.head_size,
        "PADDED_HEAD_SIZE": power_of_two(spec.head_size),
        "BLOCK_SIZE": spec.block_size,
        "TILE_ROWS": tile.rows,
        "TILE_KEYS": tile.keys,
        "WINDOW": spec.sliding_window or 0,
        "SOFT_CAP": (spec.logits_soft_cap or 0.0) * _LOG2_E,
    }


def merge_constants(spec: AttentionSpec) -> dict[str, Any]:
    """Return the compile-time constants of merge_splits_kernel."""
    return {
        "NUM_HEADS": spec.num_heads,
        "HEAD_SIZE": spec.head_size,
        "PADDED_HEAD_SIZE": power_of_two(spec.head_size),
        "MAX_SPLITS": MAX_SPLITS,
    }
