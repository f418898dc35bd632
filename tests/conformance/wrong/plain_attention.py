"""Attention backends that are right, and so plain that a mistake is one line; see attentions.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tokenmill.backends.attention.base import (
    AttentionBatch,
    AttentionCapabilities,
    AttentionSpec,
    GraphSupport,
)


@dataclass
class Metadata:
    batch: AttentionBatch
    slots: torch.Tensor


class Plain:
    """Sequence by sequence, over a cache [2, slots, k, d]."""

    name = "plain"
    graphs: GraphSupport = "never"
    capabilities = AttentionCapabilities(sinks=True)

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        is_shared = spec.num_heads % spec.num_kv_heads == 0
        is_small = (spec.head_size, spec.block_size, spec.dtype) == (32, 16, torch.float32)
        return [] if spec.device.type == "cpu" and is_shared and is_small else ["not here"]

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec
        self.layer = 0

    def use_sinks(self, sinks: Sequence[torch.Tensor]) -> None:
        self.sinks = sinks

    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        spec = self.spec
        return (2, num_blocks * spec.block_size, spec.num_kv_heads, spec.head_size)

    def build_metadata(self, batch: AttentionBatch) -> Metadata:
        return Metadata(batch, batch.slot_mapping_t)

    def forward(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: torch.Tensor,
        metadata: Metadata,
        out: torch.Tensor,
    ) -> None:
        self.layer = layer
        cache[0].index_copy_(0, metadata.slots, k)
        cache[1].index_copy_(0, metadata.slots, v)
        batch = metadata.batch
        for index, seq_len in enumerate(batch.seq_lens.tolist()):
            start, end = batch.query_start_loc[index : index + 2].tolist()
            keys, values = self.gather(cache, batch, index, seq_len)
            out[start:end] = self.attend(q[start:end], keys, values, seq_len)

    def gather(self, cache: torch.Tensor, batch: AttentionBatch, index: int, seq_len: int) -> Any:
        """Keys and values of a sequence [l, k, d]."""
        table, size = batch.block_tables_bm[index].long(), self.spec.block_size
        slots = (table[:, None] * size + torch.arange(size)).flatten()
        return cache[:, slots[:seq_len]]

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seq_len: int) -> Any:
        k, v = self.share(k), self.share(v)
        scores = torch.einsum("qhd,lhd->hql", q.double(), k.double()) * self.spec.scale
        if self.spec.logits_soft_cap is not None:
            scores = self.cap(scores, self.spec.logits_soft_cap)
        query = torch.arange(len(q))[:, None] + self.first_position(len(q), seq_len)
        visible = self.visible(query, torch.arange(len(k)))
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = self.weigh_with_sinks(scores) if self.spec.has_sinks else scores.softmax(-1)
        return torch.einsum("hql,lhd->qhd", weights, v.double()).to(q.dtype)

    def weigh_with_sinks(self, scores: torch.Tensor) -> torch.Tensor:
        sinks = self.sinks[self.layer].double()[:, None, None].expand(*scores.shape[:2], 1)
        return torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]

    def share(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(self.spec.num_heads // self.spec.num_kv_heads, dim=1)

    def cap(self, scores: torch.Tensor, cap: float) -> torch.Tensor:
        return cap * torch.tanh(scores / cap)

    def first_position(self, num_queries: int, seq_len: int) -> int:
        return seq_len - num_queries

    def visible(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        window = self.spec.sliding_window
        return (key <= query) & (key > query - (window or 10**9))

    def copy_blocks(
        self, source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
    ) -> None:
        for old, new in pairs:
            target[:, self.block(new)] = source[:, self.block(old)]

    def block(self, number: int) -> slice:
        return slice(number * self.spec.block_size, (number + 1) * self.spec.block_size)


class Captured(Plain):
    """Right, and with graphs."""

    graphs: GraphSupport = "decodes"

    def begin_capture(self, max_num_seqs: int, max_model_len: int) -> None:
        width = -(-max_model_len // self.spec.block_size)
        self.filled = AttentionBatch(
            query_start_loc=torch.arange(max_num_seqs + 1).int(),
            seq_lens=torch.ones(max_num_seqs).int(),
            block_tables_bm=torch.zeros(max_num_seqs, width).int(),
            slot_mapping_t=torch.zeros(max_num_seqs, dtype=torch.int64),
            query_lens_host=(),
            seq_lens_host=(),
            num_decodes=0,
        )

    def prepare_capture(self, num_seqs: int) -> Metadata:
        self.used = num_seqs
        return Metadata(self.filled, self.filled.slot_mapping_t)

    def prepare_replay(self, batch: AttentionBatch, num_seqs: int) -> None:
        self.used = batch.num_decodes
        tables = batch.block_tables_bm
        self.filled.block_tables_bm[: self.used, : tables.shape[1]] = tables
        self.filled.seq_lens[: self.used] = batch.seq_lens
        self.filled.slot_mapping_t[: self.used] = batch.slot_mapping_t

    def forward(self, layer: int, q: Any, k: Any, v: Any, cache: Any, meta: Any, out: Any) -> None:
        filled = getattr(self, "filled", None)
        if meta.batch is filled:
            batch = replace(meta.batch, seq_lens=meta.batch.seq_lens[: self.used])
            rows = slice(self.used)
            meta, k, v = Metadata(batch, meta.slots[rows]), k[rows], v[rows]
        super().forward(layer, q, k, v, cache, meta, out)
