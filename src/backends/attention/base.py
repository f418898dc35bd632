"""The contract of attention backends: an object per engine, metadata per step, a call per layer.

Shape suffixes: t tokens of the step, b sequences of the step, h query heads, k KV heads, d head
size, n KV blocks, s slots of a block, m blocks of the longest block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .kv_layout import KVLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """What the model and the engine ask of a backend."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int
    dtype: torch.dtype
    device: torch.device
    scale: float
    sliding_window: int | None = None
    """Tokens that a query sees, itself included; None sees all before it."""
    logits_soft_cap: float | None = None
    computes_decodes: bool = True
    """False: another backend computes the decodes, this one prompts and chunks only."""
    kv_cache_layout: KVLayout | None = None
    """One of the backend's `kv_cache_layouts`, if another shares the cache; None: its own choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """The layout of one step, the same for every layer. A sequence's last query token is its
    `seq_lens` - 1'th token: causal masks are bottom-right aligned."""

    query_start_loc: torch.Tensor
    """int32 [b + 1], on the device: sequence i's queries are rows [loc[i], loc[i + 1])."""
    seq_lens: torch.Tensor
    """int32 [b], on the device: tokens of sequence i in the cache after this step."""
    block_tables_bm: torch.Tensor
    """int32 [b, m], on the device; entries past a sequence's end are 0."""
    slot_mapping_t: torch.Tensor
    """int64 [t], on the device: where each token's K and V go, block * block_size + offset."""
    query_lens_host: Sequence[int]
    """Per sequence, on the host: no backend needs a sync to know the shapes."""
    seq_lens_host: Sequence[int]
    num_decodes: int
    """The first `num_decodes` sequences have exactly one query token."""


class AttentionBackend(Protocol):
    """Computes causal attention over a paged KV cache."""

    name: str

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        """Every reason why this backend cannot serve the spec; empty when it can."""
        ...

    def __init__(self, spec: AttentionSpec) -> None: ...

    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Shape of one layer's KV cache, K and V together."""
        ...

    def build_metadata(self, batch: AttentionBatch) -> Any:
        """What `forward` needs, computed once per step."""
        ...

    def forward(
        self,
        layer: int,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        out_thd: torch.Tensor,
    ) -> None:
        """Write K and V of the step's tokens into the cache, attend, and fill `out_thd`."""
        ...

    def copy_blocks(
        self, source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
    ) -> None:
        """Copy whole blocks of one layer, (source block, target block), in order."""
        ...
