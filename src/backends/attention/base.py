"""The contract of attention backends.

An engine has one backend object. The backend builds metadata once per step, and computes attention
with one call per layer.

Shape suffixes: t tokens of the step, b sequences of the step, h query heads, k KV heads, d head
size, n KV blocks, s slots of a block, m blocks of the longest block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeGuard

import torch

from .kv_layout import KVLayout

GraphSupport = Literal["decodes", "padded decodes", "never"]
"""The steps that a backend can compute in a captured graph: steps of decodes only, or none. Padded:
in a graph, a decode costs as much as one with the longest context that the engine allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """The model's and the engine's requirements of a backend."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int
    dtype: torch.dtype
    device: torch.device
    scale: float
    sliding_window: int | None = None
    """Number of tokens that a query sees, itself included. None: it sees all earlier tokens."""
    logits_soft_cap: float | None = None
    has_sinks: bool = False
    """Each head of each layer has a sink: a number that takes part in the softmax like the scaled
    score of a key whose value is 0. See AttentionCapabilities."""
    sees_ahead: bool = False
    """Tokens of an image see each other: a step may have AttentionBatch.last_keys_t. See
    AttentionCapabilities."""
    computes_decodes: bool = True
    """False: the backend computes prompts and chunks only, and another one computes decodes."""
    kv_cache_layout: KVLayout | None = None
    """One of the backend's `kv_cache_layouts`, when another backend shares the cache. None: the
    backend chooses."""
    kv_cache_dtype: torch.dtype | None = None
    """An 8-bit type, one of the backend's `kv_cache_dtypes`. Keys and values are rounded to it in
    the cache, at a scale of 1. All queries see rounded keys and values, even of the same
    step. None: the cache holds `dtype`."""

    @property
    def cache_dtype(self) -> torch.dtype:
        """The type of the cache's tensors."""
        return self.dtype if self.kv_cache_dtype is None else self.kv_cache_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCapabilities:
    """The capabilities of a backend, except those that its `reasons_against` checks."""

    kv_cache_layouts: Sequence[KVLayout] = ()
    """Layouts of the cache that it can use, best first. With them it can be paired with another
    backend."""
    kv_cache_dtypes: Sequence[torch.dtype] = ()
    """The values of `AttentionSpec.kv_cache_dtype` that it serves. It never gets a spec with
    another value."""
    sinks: bool = False
    """It has a method `use_sinks(sinks)`, which gets the sinks of each layer, float32 [h], before
    the first call of `forward`. Otherwise it never gets a spec with `has_sinks`."""
    sees_ahead: bool = False
    """It follows AttentionBatch.last_keys_t. Otherwise it never gets a spec with `sees_ahead`."""
    builds: bool = False
    """It has a class method `build(spec, progress)`, which compiles its kernels. It is called
    before `reasons_against`, so that the user sees progress. It may raise BuildError."""
    reports: bool = False
    """It has a class method `on_this_machine()`: one line for each thing that it finds or misses on
    this machine, for any model. `tokenmill plugins show` prints them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """The layout of one step, the same for every layer of a group.

    A sequence's last query is at position `seq_lens` - 1: causal masks are bottom-right aligned.
    """

    query_start_loc: torch.Tensor
    """int32 [b + 1], on the device: sequence i's queries are rows [loc[i], loc[i + 1])."""
    seq_lens: torch.Tensor
    """int32 [b], on the device: number of tokens of each sequence in the cache after this step."""
    block_tables_bm: torch.Tensor
    """int32 [b, m], on the device; entries past a sequence's end are 0. The entries of blocks that
    the windows of all layers have passed repeat the first later entry."""
    slot_mapping_t: torch.Tensor
    """int64 [t], on the device: the slot of each token's K and V, block * block_size + offset."""
    query_lens_host: Sequence[int]
    """Queries per sequence, on the host, so that no backend waits for the device for shapes."""
    seq_lens_host: Sequence[int]
    """The numbers of `seq_lens`, on the host."""
    num_decodes: int
    """The first `num_decodes` sequences have exactly one query token."""
    last_keys_t: torch.Tensor | None = None
    """int32 [t], on the device: the position of the last key that each query sees, its own or a
    later one of this step. It grows within a sequence. Windows still begin before the query's own
    position. None: each query sees up to its own key."""
    other_groups: Sequence[AttentionBatch] = ()
    """The same step for other groups of layers, which have block tables and slots of their own. A
    backend gets the batch of its layers, without other groups."""

    @property
    def by_group(self) -> Sequence[AttentionBatch]:
        """The batch of each group of layers; see KVGroups."""
        return (self, *self.other_groups)


class AttentionBackend(Protocol):
    """Computes causal attention over a paged KV cache."""

    name: str
    capabilities: AttentionCapabilities
    graphs: GraphSupport
    """Unless it is "never", the backend is a GraphableBackend."""

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        """Return every reason why this backend cannot serve the spec; empty when it can."""
        ...

    def __init__(self, spec: AttentionSpec) -> None: ...

    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Return the shape of one layer's KV cache, K and V together."""
        ...

    def build_metadata(self, batch: AttentionBatch) -> Any:
        """Compute the data that `forward` needs, once per step."""
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
    """A backend whose `forward` can be captured: it runs the same kernels on the same memory.

    A graph is captured for a number of sequences, all of them decodes. The order of calls:

    1. `begin_capture` once, before any request is served.
    2. Per graph: `prepare_capture`, then `forward` for every layer while the graph is captured.
    3. Per step of at most that number of decodes: `prepare_replay`, then the graph, not `forward`.

    Other steps use `build_metadata` and `forward` at any time. Only one graph runs at a time, on
    the stream that fills its memory.
    """

    def begin_capture(self, max_num_seqs: int, max_model_len: int) -> None:
        """Allocate the memory that all graphs read.

        It holds up to `max_num_seqs` decodes with up to `max_model_len` tokens each.
        """
        ...

    def prepare_capture(self, num_seqs: int) -> Any:
        """Return the metadata of a step of `num_seqs` decodes that reads the graphs' memory.

        The caller keeps the metadata as long as the graph, which may use memory in it.

        `forward` with this metadata depends on nothing that the host knows about a step. Before the
        first `prepare_replay` it may write slot 0 of block 0 and no other slot, so graphs are
        captured while the cache is empty.
        """
        ...

    def prepare_replay(self, batch: AttentionBatch, num_seqs: int) -> None:
        """Fill the graphs' memory with a step before the graph of `num_seqs` sequences is replayed.

        The batch has one to `num_seqs` decodes. The work is queued on the current stream, without a
        wait. A graph's remaining rows write nothing to the cache that the batch's rows do not write
        too, whatever their K and V are, and their output is ignored.
        """
        ...


def is_graphable(backend: AttentionBackend) -> TypeGuard[GraphableBackend]:
    """Whether the backend can capture steps of decodes."""
    return backend.graphs != "never"
