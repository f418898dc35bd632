"""Attention in Triton: paged kernels that need only torch and the triton that it comes with.

Decodes, prompts and chunks read the cache through their block tables, see kernels.py. If sequences
are few and contexts long, each context is split over the GPU. Slots that hold no token of a
sequence may contain anything.

Shape suffixes: t tokens of the step, b sequences, h query heads, k KV heads, d head size, n KV
blocks, s slots of a block, m blocks of the longest block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...machine.device import count_processors
from ..base import AttentionBatch, AttentionCapabilities, AttentionSpec, GraphSupport
from ..graph_inputs import PaddedInputs
from ..kv_layout import KVLayout
from .ops import Launch, TritonOps
from .reasons import reasons_of_spec, reasons_of_this_machine
from .tiles import count_splits, queries_per_tile, tile_chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonMetadata:
    """One step's layout, ready to be used by every layer."""

    slot_mapping_t: torch.Tensor
    launches: Sequence[Launch]


class TritonAttention:
    """The Triton backend; see AttentionBackend for the contract."""

    name = "triton"
    graphs: GraphSupport = "decodes"
    capabilities = AttentionCapabilities(
        kv_cache_layouts=(KVLayout.HEADS, KVLayout.BLOCKS, KVLayout.HALVES), reports=True
    )

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        return reasons_of_spec(spec)

    @classmethod
    def on_this_machine(cls) -> list[str]:
        return reasons_of_this_machine()

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._layout = spec.kv_cache_layout or self.capabilities.kv_cache_layouts[0]
        self._ops = TritonOps(spec)
        self._num_processors = count_processors(spec.device)
        self._graph_inputs: PaddedInputs | None = None
        self._max_model_len = 0

    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Return [n, k, 2, s, d], unless the spec names another layout."""
        return self._layout.shape(self._spec, num_blocks)

    def build_metadata(self, batch: AttentionBatch) -> TritonMetadata:
        """Build tiles and splits of one step; copy a few numbers to the device without waiting."""
        launches = []
        if batch.num_decodes:
            longest = max(batch.seq_lens_host[: batch.num_decodes])
            launches.append(
                self._launch_decodes(
                    batch.num_decodes, batch.seq_lens, batch.block_tables_bm, longest
                )
            )
        if any(batch.query_lens_host[batch.num_decodes :]):
            launches.append(self._launch_chunks(batch))
        return TritonMetadata(slot_mapping_t=batch.slot_mapping_t, launches=launches)

    def forward(
        self,
        layer: int,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: TritonMetadata,
        out_thd: torch.Tensor,
    ) -> None:
        assert all(x.stride(-1) == 1 for x in (q_thd, k_tkd, v_tkd, kv_cache, out_thd))
        keys, values = self._layout.views(kv_cache)
        self._ops.write(k_tkd, v_tkd, keys, values, metadata.slot_mapping_t)
        for launch in metadata.launches:
            rows = slice(launch.first_row, launch.first_row + launch.num_rows)
            self._ops.attend(launch, q_thd[rows], keys, values, out_thd[rows])

    def copy_blocks(
        self, source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
    ) -> None:
        self._layout.copy_blocks(source, target, pairs)

    def begin_capture(self, max_num_seqs: int, max_model_len: int) -> None:
        self._graph_inputs = PaddedInputs.allocate(self._spec, max_num_seqs, max_model_len)
        self._max_model_len = max_model_len

    def prepare_capture(self, num_seqs: int) -> TritonMetadata:
        inputs = self._graph_inputs
        assert inputs is not None, "begin_capture was not called"
        inputs.clear()
        launch = self._launch_decodes(
            num_seqs, inputs.seq_lens, inputs.block_tables_bm, self._max_model_len
        )
        return TritonMetadata(slot_mapping_t=inputs.slot_mapping_b[:num_seqs], launches=[launch])

    def prepare_replay(self, batch: AttentionBatch, num_seqs: int) -> None:
        """Padding sequences write nothing, and their output is 0."""
        assert self._graph_inputs is not None, "begin_capture was not called"
        self._graph_inputs.fill(batch, num_seqs)

    def _launch_decodes(
        self, num_seqs: int, seq_lens: torch.Tensor, tables_bm: torch.Tensor, longest: int
    ) -> Launch:
        num_splits = self._count_splits(num_seqs, longest)
        return Launch(
            first_row=0,
            num_rows=num_seqs,
            num_tiles=num_seqs,
            tiles=None,
            seq_lens=seq_lens,
            block_tables_bm=tables_bm,
            num_splits=num_splits,
            partial_out=self._partial(num_seqs, num_splits, self._spec.head_size),
            partial_lse=self._partial(num_seqs, num_splits),
        )

    def _launch_chunks(self, batch: AttentionBatch) -> Launch:
        spec, first = self._spec, batch.num_decodes
        query_lens, seq_lens = batch.query_lens_host, batch.seq_lens_host
        tiles = tile_chunks(query_lens, seq_lens, first, queries_per_tile(spec))
        num_rows = sum(query_lens[first:])
        num_splits = self._count_splits(len(tiles), max(seq_lens[first:]))
        return Launch(
            first_row=first,
            num_rows=num_rows,
            num_tiles=len(tiles),
            tiles=torch.from_numpy(tiles).to(spec.device, non_blocking=True),
            seq_lens=None,
            block_tables_bm=batch.block_tables_bm,
            num_splits=num_splits,
            partial_out=self._partial(num_rows, num_splits, spec.head_size),
            partial_lse=self._partial(num_rows, num_splits),
        )

    def _count_splits(self, num_tiles: int, longest: int) -> int:
        """Return the splits per tile; `longest` is the longest context of any tile, in tokens."""
        spec = self._spec
        visible = min(longest, spec.sliding_window or longest)
        return count_splits(num_tiles * spec.num_kv_heads, visible, self._num_processors)

    def _partial(self, num_rows: int, num_splits: int, *size: int) -> torch.Tensor | None:
        """Allocate memory for the results of splits, shared by all layers; None without splits."""
        if num_splits == 1:
            return None
        shape = (num_rows, self._spec.num_heads, num_splits, *size)
        return torch.empty(shape, dtype=torch.float32, device=self._spec.device)
