"""Attention in plain torch operations: the readable reference, on CPU and GPU, for any block size.

Keys and values are gathered token by token, only from slots that hold tokens of the sequence, and
padding repeats the sequence's last token. Unused slots, which may hold NaN, are never read, so a
mask only has to hide finite numbers.

Shape suffixes: t tokens of the step, b sequences, h query heads, k KV heads, g query heads per KV
head, d head size, n KV blocks, s slots of a block, q queries of a sequence, l keys of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..base import AttentionBatch, AttentionCapabilities, AttentionSpec, GraphSupport
from ..fp8 import FP8_DTYPES, movable, quantize
from ..kv_layout import KVLayout
from ..reasons import reasons_of_dtype, reasons_of_heads
from .decodes import (
    DecodeGraph,
    DecodeGroup,
    build_groups,
    num_visible,
    slots_of_positions,
)

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAX_MASK_SIZE = 1 << 20
"""Elements of a mask, queries times keys: bounds the memory of a long prompt's mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Consecutive tokens of one sequence: a prompt, or a part of one."""

    first_row: int
    num_queries: int
    first_position: int
    """Position of the first query in the sequence."""
    first_key: int
    """Position of the first key that any of the queries sees."""
    slots_l: torch.Tensor | None
    """int64: the cache slot of each key. None: the queries' own tokens are all keys."""
    last_keys_q: torch.Tensor | None
    """int32: the position of the last key that each query sees. None: its own position."""

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + self.num_queries)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchMetadata:
    """One step's layout, ready to be used by every layer."""

    slot_mapping_t: torch.Tensor
    decode_groups: tuple[DecodeGroup, ...]
    chunks: tuple[_Chunk, ...]
    rows_t: torch.Tensor | None = None
    """In a captured graph, the row whose keys and values each row writes. None: its own."""


class TorchAttention:
    """The reference backend; see AttentionBackend for the contract."""

    name = "torch"
    graphs: GraphSupport = "padded decodes"
    capabilities = AttentionCapabilities(
        kv_cache_layouts=(KVLayout.HALVES,), kv_cache_dtypes=FP8_DTYPES, sinks=True, sees_ahead=True
    )

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        reasons = reasons_of_dtype(spec, _DTYPES)
        if spec.device.type not in ("cpu", "cuda"):
            reasons.append(f"it runs on cpu and cuda, not on {spec.device.type}")
        return [*reasons, *reasons_of_heads(spec)]

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._group_size = spec.num_heads // spec.num_kv_heads
        self._graph: DecodeGraph | None = None
        self._sinks: Sequence[torch.Tensor] = ()

    def use_sinks(self, sinks: Sequence[torch.Tensor]) -> None:
        """Take the sinks of each layer; see AttentionCapabilities."""
        self._sinks = sinks

    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        """[2, n, s, k, d]: keys, then values."""
        return KVLayout.HALVES.shape(self._spec, num_blocks)

    def build_metadata(self, batch: AttentionBatch) -> TorchMetadata:
        """Build slots and masks of one step; copy a few numbers to the device without waiting."""
        return TorchMetadata(
            slot_mapping_t=batch.slot_mapping_t,
            decode_groups=build_groups(batch, self._spec),
            chunks=tuple(self._build_chunks(batch)),
        )

    def forward(
        self,
        layer: int,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: TorchMetadata,
        out_thd: torch.Tensor,
    ) -> None:
        keys, values = kv_cache.view(2, -1, *kv_cache.shape[3:])
        if metadata.rows_t is not None:
            k_tkd, v_tkd = (x.index_select(0, metadata.rows_t) for x in (k_tkd, v_tkd))
        if self._spec.kv_cache_dtype is not None:
            k_tkd, v_tkd = (quantize(x, self._spec.kv_cache_dtype) for x in (k_tkd, v_tkd))
        for cached, new_tkd in ((keys, k_tkd), (values, v_tkd)):
            movable(cached).index_copy_(0, metadata.slot_mapping_t, movable(new_tkd))
        for group in metadata.decode_groups:
            self._decode(layer, group, q_thd, keys, values, out_thd)
        for chunk in metadata.chunks:
            if chunk.slots_l is None:
                k_lkd, v_lkd = (x[chunk.rows].to(self._spec.dtype) for x in (k_tkd, v_tkd))
            else:
                k_lkd, v_lkd = (self._gather(x, chunk.slots_l) for x in (keys, values))
            self._prefill(layer, chunk, q_thd[chunk.rows], k_lkd, v_lkd, out_thd[chunk.rows])

    def copy_blocks(
        self, source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
    ) -> None:
        KVLayout.HALVES.copy_blocks(source, target, pairs)

    def begin_capture(self, max_num_seqs: int, max_model_len: int) -> None:
        self._graph = DecodeGraph(self._spec, max_num_seqs, max_model_len)

    def prepare_capture(self, num_seqs: int) -> TorchMetadata:
        """Whatever its length, each decode reads `max_model_len` keys, or a window of them."""
        assert self._graph is not None, "begin_capture was not called"
        return TorchMetadata(
            slot_mapping_t=self._graph.slot_mapping_b[:num_seqs],
            decode_groups=(self._graph.group(num_seqs),),
            chunks=(),
            rows_t=self._graph.rows_b[:num_seqs],
        )

    def prepare_replay(self, batch: AttentionBatch, num_seqs: int) -> None:
        assert self._graph is not None, "begin_capture was not called"
        self._graph.fill(batch, num_seqs)

    def _build_chunks(self, batch: AttentionBatch) -> list[_Chunk]:
        chunks = []
        row = batch.num_decodes
        for index in range(batch.num_decodes, len(batch.query_lens_host)):
            num_queries = batch.query_lens_host[index]
            chunks.append(self._build_chunk(batch, index, row, num_queries))
            row += num_queries
        return chunks

    def _build_chunk(
        self, batch: AttentionBatch, index: int, first_row: int, num_queries: int
    ) -> _Chunk:
        seq_len = batch.seq_lens_host[index]
        first_position = seq_len - num_queries
        first_key = first_position + 1 - num_visible(first_position + 1, self._spec)
        slots_l = None
        if first_key < first_position:
            table_1m = batch.block_tables_bm[index : index + 1]
            positions_l = torch.arange(first_key, seq_len, device=table_1m.device)
            slots_1l = slots_of_positions(table_1m, positions_l.unsqueeze(0), self._spec.block_size)
            slots_l = slots_1l.squeeze(0)
        last_keys_t = batch.last_keys_t
        rows = slice(first_row, first_row + num_queries)
        return _Chunk(
            first_row=first_row,
            num_queries=num_queries,
            first_position=first_position,
            first_key=first_key,
            slots_l=slots_l,
            last_keys_q=None if last_keys_t is None else last_keys_t[rows],
        )

    def _decode(
        self,
        layer: int,
        group: DecodeGroup,
        q_thd: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out_thd: torch.Tensor,
    ) -> None:
        slots = group.slots_bl.flatten()
        k_bkld, v_bkld = (
            self._gather(x, slots).view(*group.slots_bl.shape, *x.shape[1:]).transpose(1, 2)
            for x in (keys, values)
        )
        # The query heads of a KV head become its queries: K and V are read once for all of them.
        q_bhd = q_thd.index_select(0, group.rows_b)
        q_bkgd = q_bhd.view(-1, self._spec.num_kv_heads, self._group_size, self._spec.head_size)
        sinks = self._sinks_of(layer, (1, self._spec.num_kv_heads, 1, self._group_size, 1))
        attended_bkgd = self._attend(q_bkgd, k_bkld, v_bkld, group.visible_b11l, sinks)
        out_thd.index_copy_(0, group.rows_b, attended_bkgd.flatten(1, 2))

    def _gather(self, cached: torch.Tensor, slots_l: torch.Tensor) -> torch.Tensor:
        """Gather keys or values [l, k, d] of slots, in the precision of the model."""
        gathered = movable(cached).index_select(0, slots_l)
        return gathered.view(cached.dtype).to(self._spec.dtype)

    def _prefill(
        self,
        layer: int,
        chunk: _Chunk,
        q_qhd: torch.Tensor,
        k_lkd: torch.Tensor,
        v_lkd: torch.Tensor,
        out_qhd: torch.Tensor,
    ) -> None:
        """Attend in tiles of queries, so that no mask exceeds _MAX_MASK_SIZE."""
        q_1hqd, k_1kld, v_1kld = (x.transpose(0, 1).unsqueeze(0) for x in (q_qhd, k_lkd, v_lkd))
        if self._is_plainly_causal(chunk):
            attended_1hqd = self._attend(q_1hqd, k_1kld, v_1kld, None, None)
            out_qhd.copy_(attended_1hqd.squeeze(0).transpose(0, 1))
            return
        sinks = self._sinks_of(layer, (1, self._spec.num_kv_heads, self._group_size, 1, 1))
        tile_size = max(1, _MAX_MASK_SIZE // k_lkd.shape[0])
        for start in range(0, chunk.num_queries, tile_size):
            end = min(start + tile_size, chunk.num_queries)
            last = end if chunk.last_keys_q is None else chunk.num_queries
            num_keys = chunk.first_position + last - chunk.first_key
            attended_1hqd = self._attend(
                q_1hqd[:, :, start:end],
                k_1kld[:, :, :num_keys],
                v_1kld[:, :, :num_keys],
                self._visible(chunk, start, end, num_keys, q_qhd.device),
                sinks,
            )
            out_qhd[start:end].copy_(attended_1hqd.squeeze(0).transpose(0, 1))

    def _is_plainly_causal(self, chunk: _Chunk) -> bool:
        """Whether query i sees exactly the keys 0 to i.

        Torch's `is_causal`, which is aligned at the top left, computes that without a mask.
        """
        spec = self._spec
        fits_window = spec.sliding_window is None or chunk.num_queries <= spec.sliding_window
        is_plain = spec.logits_soft_cap is None and not spec.has_sinks and chunk.last_keys_q is None
        return chunk.slots_l is None and fits_window and is_plain

    def _visible(
        self, chunk: _Chunk, start: int, end: int, num_keys: int, device: torch.device
    ) -> torch.Tensor:
        """Return which keys the queries [start, end) of a chunk see: bool [1, 1, q, l]."""
        first, last = chunk.first_position + start, chunk.first_position + end
        query_q1 = torch.arange(first, last, device=device).unsqueeze(1)
        key_l = torch.arange(chunk.first_key, chunk.first_key + num_keys, device=device)
        last_q1 = query_q1
        if chunk.last_keys_q is not None:
            last_q1 = chunk.last_keys_q[start:end].unsqueeze(1)
        visible_ql = key_l <= last_q1
        if self._spec.sliding_window is not None:
            visible_ql &= key_l > query_q1 - self._spec.sliding_window
        return visible_ql[None, None]

    def _attend(
        self,
        q_bhqd: torch.Tensor,
        k_bkld: torch.Tensor,
        v_bkld: torch.Tensor,
        visible: torch.Tensor | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute softmax attention; `visible` None means causal, aligned at the top left."""
        if self._spec.logits_soft_cap is not None or sinks is not None:
            assert visible is not None
            return self._attend_by_hand(q_bhqd, k_bkld, v_bkld, visible, sinks)
        return F.scaled_dot_product_attention(
            q_bhqd,
            k_bkld,
            v_bkld,
            attn_mask=visible,
            is_causal=visible is None,
            scale=self._spec.scale,
            enable_gqa=q_bhqd.shape[1] != k_bkld.shape[1],
        )

    def _sinks_of(self, layer: int, shape: Sequence[int]) -> torch.Tensor | None:
        """Return a layer's sinks in a shape that fits the scores of `_attend_by_hand`."""
        return self._sinks[layer].view(*shape) if self._spec.has_sinks else None

    def _attend_by_hand(
        self,
        q_bhqd: torch.Tensor,
        k_bkld: torch.Tensor,
        v_bkld: torch.Tensor,
        visible: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attend in float32, with soft caps and sinks, which torch's own attention lacks.

        Scores may be limited to (-cap, cap) by tanh (Gemma 2). Sinks take part in the softmax as a
        last key, without a value (gpt-oss).
        """
        cap = self._spec.logits_soft_cap
        q_bkgqd = q_bhqd.float().view(*k_bkld.shape[:2], -1, *q_bhqd.shape[2:])
        scores = (q_bkgqd @ k_bkld.float().unsqueeze(2).mT) * self._spec.scale
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        scores.masked_fill_(~visible.unsqueeze(1), -torch.inf)
        if sinks is not None:
            scores = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), dim=-1)
        weights = scores.softmax(dim=-1)[..., : k_bkld.shape[2]]
        attended = weights @ v_bkld.float().unsqueeze(2)
        return attended.flatten(1, 2).to(q_bhqd.dtype)
