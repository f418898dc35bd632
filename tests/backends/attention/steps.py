"""Random steps for any attention backend, and what a naive float64 computation makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from tokenmill.backends.attention.base import AttentionBackend, AttentionBatch, AttentionSpec
from tokenmill.backends.attention.fp8 import quantize
from tokenmill.testing.conformance.attention.reference import reference_attention

SPEC = AttentionSpec(
    num_heads=6,
    num_kv_heads=2,
    head_size=16,
    block_size=8,
    dtype=torch.float32,
    device=torch.device("cpu"),
    scale=0.25,
)
"""Three query heads to a KV head, in blocks that are small enough for many of them."""
GPU_SPEC = AttentionSpec(
    num_heads=32,
    num_kv_heads=8,
    head_size=128,
    block_size=16,
    dtype=torch.bfloat16,
    device=torch.device("cuda"),
    scale=0.1,
)
"""For what is decided without computing."""


@dataclass(frozen=True)
class Span:
    """Tokens of one sequence: all its keys, and how many of them are queried in this step."""

    num_queries: int
    seq_len: int

    @property
    def last_keys_q(self) -> torch.Tensor:
        """The last key that each query sees, int32, if all but the first and the last see each
        other."""
        keys_q = torch.arange(self.seq_len - self.num_queries, self.seq_len, dtype=torch.int32)
        keys_q[1:-1] = self.seq_len - 2
        return keys_q


DECODES = [Span(1, n) for n in (1, 7, 8, 9, 40, 130, 131, 300)]
PROMPTS = [Span(n, n) for n in (2, 8, 33, 70)]
CHUNKS = [Span(n, m) for n, m in ((2, 3), (8, 24), (5, 61), (40, 47), (1, 30))]
BATCHES = {
    "decodes": (DECODES, len(DECODES)),
    "prompts": (PROMPTS, 0),
    "chunks": (CHUNKS, 0),
    "mixed": ([*DECODES, *CHUNKS, *PROMPTS], len(DECODES)),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sliding window": {"sliding_window": 11},
    "sliding window of one token": {"sliding_window": 1},
    "soft cap": {"logits_soft_cap": 0.7},
    "window and cap": {"sliding_window": 37, "logits_soft_cap": 0.7},
}
IMAGES: dict[str, dict[str, Any]] = {
    "images": {"sees_ahead": True},
    "window and images": {"sliding_window": 11, "sees_ahead": True},
    "window, cap and images": {"sees_ahead": True, **VARIANTS["window and cap"]},
}
"""For backends whose queries may see later keys."""


class Step:
    """A random step: caches that are NaN wherever no token of a sequence lies."""

    def __init__(
        self,
        backend: type[AttentionBackend],
        spec: AttentionSpec,
        sequences: Sequence[Span],
        num_decodes: int,
        seed: int = 0,
    ) -> None:
        self.spec, self.sequences = spec, sequences
        self.generator = torch.Generator().manual_seed(seed)
        self.backend = backend(spec)
        lengths = [s.num_queries for s in sequences]
        self.q = [self._random(n, spec.num_heads) for n in lengths]
        self.k = [self._random(s.seq_len, spec.num_kv_heads) for s in sequences]
        self.v = [self._random(s.seq_len, spec.num_kv_heads) for s in sequences]
        self.slots = self._place()
        self.batch = self._batch(sequences, num_decodes)
        if spec.sees_ahead:
            last_keys_t = torch.cat([s.last_keys_q for s in sequences]).to(spec.device)
            self.batch = replace(self.batch, last_keys_t=last_keys_t)
        self.sinks_h: torch.Tensor | None = None
        if spec.has_sinks:
            self.sinks_h = torch.randn(spec.num_heads, generator=self.generator) + 1
            cast(Any, self.backend).use_sinks([self.sinks_h])
        self.cache = self.fill()

    def _random(self, *shape: int) -> torch.Tensor:
        values = torch.randn(*shape, self.spec.head_size, generator=self.generator)
        return values.to(self.spec.device, self.spec.dtype)

    def _place(self) -> list[torch.Tensor]:
        """Slots of every token, over blocks in random order; block 0 belongs to nobody."""
        size = self.spec.block_size
        counts = [-(-s.seq_len // size) for s in self.sequences]
        blocks = torch.randperm(sum(counts) + 3, generator=self.generator) + 1
        self.num_blocks = int(blocks.max()) + 1
        self.tables = list(torch.split(blocks[: sum(counts)], counts))
        return [
            (table[:, None] * size + torch.arange(size)).flatten()[: s.seq_len]
            for table, s in zip(self.tables, self.sequences, strict=True)
        ]

    def fill(self) -> torch.Tensor:
        """The cache before the step, written by an earlier one: the tokens before the queries."""
        shape = self.backend.kv_cache_shape(self.num_blocks)
        cache = torch.full(shape, torch.nan, dtype=self.spec.cache_dtype, device=self.spec.device)
        for index, s in enumerate(self.sequences):
            known = s.seq_len - s.num_queries
            if known == 0:
                continue
            k, v = self.k[index][:known], self.v[index][:known]
            batch = self._batch([Span(known, known)], 0, first=index)
            q = k.new_zeros(known, self.spec.num_heads, self.spec.head_size)
            metadata = self.backend.build_metadata(batch)
            self.backend.forward(0, q, k, v, cache, metadata, torch.empty_like(q))
        return cache

    def _batch(self, sequences: Sequence[Span], num_decodes: int, first: int = 0) -> AttentionBatch:
        query_lens = [s.num_queries for s in sequences]
        mine = range(first, first + len(sequences))
        tables = torch.nn.utils.rnn.pad_sequence([self.tables[i] for i in mine], batch_first=True)
        new_slots = [
            self.slots[i][s.seq_len - s.num_queries : s.seq_len]
            for i, s in zip(mine, sequences, strict=True)
        ]
        device = self.spec.device
        return AttentionBatch(
            query_start_loc=torch.tensor([0, *query_lens]).cumsum(0).int().to(device),
            seq_lens=torch.tensor([s.seq_len for s in sequences]).int().to(device),
            block_tables_bm=tables.int().to(device),
            slot_mapping_t=torch.cat(new_slots).to(device),
            query_lens_host=query_lens,
            seq_lens_host=[s.seq_len for s in sequences],
            num_decodes=num_decodes,
        )

    def run(self) -> list[torch.Tensor]:
        """The backend's output per sequence."""
        lengths = self.batch.query_lens_host
        new = [slice(s.seq_len - s.num_queries, None) for s in self.sequences]
        new_k = torch.cat([k[tokens] for k, tokens in zip(self.k, new, strict=True)])
        new_v = torch.cat([v[tokens] for v, tokens in zip(self.v, new, strict=True)])
        q = torch.cat(self.q)
        out = torch.full_like(q, torch.nan)
        metadata = self.backend.build_metadata(self.batch)
        self.backend.forward(0, q, new_k, new_v, self.cache, metadata, out)
        return list(torch.split(out, list(lengths)))

    def expected(self) -> list[torch.Tensor]:
        """In float64."""
        ahead = [s.last_keys_q if self.spec.sees_ahead else None for s in self.sequences]
        return [
            reference_attention(self.spec, q, self.stored(k), self.stored(v), self.sinks_h, last)
            for q, k, v, last in zip(self.q, self.k, self.v, ahead, strict=True)
        ]

    def stored(self, rows: torch.Tensor) -> torch.Tensor:
        """Keys or values as the cache gives them back."""
        dtype = self.spec.kv_cache_dtype
        return rows if dtype is None else quantize(rows, dtype).to(self.spec.dtype)

    def check(self, tolerance: float = 2e-6) -> None:
        for actual, expected in zip(self.run(), self.expected(), strict=True):
            torch.testing.assert_close(
                actual.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=False
            )

    def check_with_nan(self, *broken: int, tolerance: float) -> None:
        """Check that NaN in the keys of these sequences spoils their output, and no other."""
        for index in broken:
            self.k[index].fill_(torch.nan)
        self.cache = self.fill()
        for index, (actual, expected) in enumerate(zip(self.run(), self.expected(), strict=True)):
            if index in broken:
                assert actual.isnan().all()
            else:
                torch.testing.assert_close(
                    actual.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=False
                )
