"""The contract of attention backends: an object per engine, metadata per step, a call per layer.

Shape suffixes: t tokens of the step, b sequences of the step, h query heads, k KV heads, d head
size, n KV blocks, s slots of a block, m blocks of the longest block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeGuard

import torch

from .kv_layout import KVLayout

GraphSupport = Literal["decodes", "never"]
"""Which steps a backend can compute in a captured graph: those of decodes alone, or none."""


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
    kv_cache_dtype: torch.dtype | None = None
    """An 8-bit type, one of the backend's `kv_cache_dtypes`, that keys and values are rounded to in
    the cache, at a scale of 1; all queries see them rounded, those of the same step as well. None:
    `dtype`."""

    @property
    def cache_dtype(self) -> torch.dtype:
        """What the cache's tensors hold."""
        return self.dtype if self.kv_cache_dtype is None else self.kv_cache_dtype


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
    """Computes causal attention over a paged KV cache.

    A class may also have:

    - `kv_cache_layouts`: layouts of the cache that it can use, best first. It can then be paired
      with another backend.
    - `kv_cache_dtypes`: the values of `AttentionSpec.kv_cache_dtype` that it serves. A backend
      without them is never asked to serve one.
    - `build(spec, progress)`, a classmethod: compiles what the backend needs. It is called before
      `reasons_against` so that the user sees progress; it may raise BuildError.
    - `on_this_machine()`, a classmethod: what is missing here, whatever the model, one line each.
    - `step_model(decoder, kv_cache)`: a StepModel that computes whole steps instead of layer by
      layer, or None where it cannot for this decoder.
    """

    name: str
    graphs: GraphSupport
    """Unless it is "never", the backend is a GraphableBackend."""

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


class GraphableBackend(AttentionBackend, Protocol):
    """One whose `forward` can be captured in a graph: always the same kernels on the same memory.

    The runner calls `begin_capture` once, before it serves. Then for each graph, of steps with a
    certain number of sequences, all of them decodes: `prepare_capture`, and `forward` for every
    layer while it captures. From then on, for each step of as many decodes or fewer:
    `prepare_replay`, and the graph instead of `forward`. Other steps go by `build_metadata` as
    before, at any time. Only one graph runs at a time, on the stream that fills its memory.
    """

    def begin_capture(self, max_num_seqs: int, max_model_len: int) -> None:
        """Set the memory aside that all graphs read: for at most so many decodes, each of at most
        `max_model_len` tokens."""
        ...

    def prepare_capture(self, num_seqs: int) -> Any:
        """The metadata of a step of `num_seqs` decodes, which reads that memory. Its caller keeps
        it for as long as the graph: there may be memory in it that the graph uses.

        `forward` with it does not depend on anything that the host knows about a step. Captured and
        run before the first `prepare_replay`, it may write slot 0 of block 0 and no other; so
        graphs are captured before anything is in the cache.
        """
        ...

    def prepare_replay(self, batch: AttentionBatch, num_seqs: int) -> None:
        """Fill the memory for a step of one to `num_seqs` decodes, before the graph of `num_seqs`
        sequences is replayed; queued on the current stream, without a wait.

        For sequences that the batch lacks nothing is written into the cache that another does not
        write as well, whatever their K and V are, and nobody reads their output.
        """
        ...


def is_graphable(backend: AttentionBackend) -> TypeGuard[GraphableBackend]:
    """Whether steps of decodes can be captured with it."""
    return backend.graphs != "never"
