"""Random steps to test any attention backend, in caches whose layout only the backend knows.

Shape suffixes: t tokens of the step, b sequences, h query heads, k KV heads, d head size, m blocks
of the longest block table.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ....backends.attention.base import AttentionBackend, AttentionBatch, AttentionSpec
from ....backends.attention.fp8 import quantize
from .reference import TOLERANCES, reference_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One sequence in a step: the tokens that the step computes, and its length after the step."""

    num_queries: int
    seq_len: int

    @property
    def num_known(self) -> int:
        """Tokens that earlier steps computed."""
        return self.seq_len - self.num_queries

    @property
    def last_keys_q(self) -> torch.Tensor:
        """The last key that each query sees, int32, if the queries of the second third see each
        other."""
        keys_q = torch.arange(self.num_known, self.seq_len, dtype=torch.int32)
        begin, end = self.num_queries // 3, 2 * self.num_queries // 3
        keys_q[begin:end] = self.num_known + end - 1
        return keys_q


class Step:
    """One step of random sequences, in blocks at random places.

    Each sequence has its own blocks, unless `tables` shares them. Block 0 belongs to no sequence
    unless a table names it, because block tables are padded with it.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        spans: Sequence[Span],
        num_decodes: int,
        *,
        seed: int = 0,
        tables: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self.spec, self.spans, self.num_decodes = spec, tuple(spans), num_decodes
        self._generator = torch.Generator().manual_seed(seed)
        self.tables = list(tables if tables is not None else self._place())
        """int64 [blocks], on the host, per sequence."""
        self.num_blocks = max(int(table.max()) for table in self.tables) + 2
        """Number of blocks in the caches that `new_cache` makes."""
        self.q = [self._random(s.num_queries, spec.num_heads) for s in spans]
        """[queries, h, d] per sequence."""
        self.k = [self._random(s.seq_len, spec.num_kv_heads) for s in spans]
        """[seq_len, k, d] per sequence; `v` has the same shape."""
        self.v = [self._random(s.seq_len, spec.num_kv_heads) for s in spans]
        self.sinks_h = self._random(spec.num_heads)[:, 0].float() + 1 if spec.has_sinks else None

    @property
    def batch(self) -> AttentionBatch:
        """The step's AttentionBatch, in new tensors."""
        batch = self._batch(range(len(self.spans)), self.spans, self.num_decodes)
        if not self.spec.sees_ahead:
            return batch
        last_keys_t = torch.cat([span.last_keys_q for span in self.spans])
        return replace(batch, last_keys_t=last_keys_t.to(self.spec.device))

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [t, h, d], keys and values [t, k, d] of the step's tokens."""
        new = [slice(s.num_known, None) for s in self.spans]
        k_tkd, v_tkd = (
            torch.cat([x[tokens] for x, tokens in zip(rows, new, strict=True)])
            for rows in (self.k, self.v)
        )
        return torch.cat(self.q), k_tkd, v_tkd

    def new_cache(self, backend: AttentionBackend) -> torch.Tensor:
        """A cache before this step. It has the known tokens, and random numbers everywhere else."""
        shape = backend.kv_cache_shape(self.num_blocks)
        stale = torch.randn(shape, generator=self._generator) * 3
        cache = stale.to(self.spec.device, self.spec.cache_dtype)
        self.write_known(backend, cache)
        return cache

    def write_known(self, backend: AttentionBackend, cache: torch.Tensor) -> None:
        """Write the tokens before this step into the cache, by a step of their own."""
        known = [
            (i, Span(num_queries=s.num_known, seq_len=s.num_known))
            for i, s in enumerate(self.spans)
            if s.num_known
        ]
        if not known:
            return
        indices, spans = zip(*known, strict=True)
        k_tkd, v_tkd = (
            torch.cat([rows[i][: span.seq_len] for i, span in known]) for rows in (self.k, self.v)
        )
        q_thd = k_tkd.new_ones(len(k_tkd), self.spec.num_heads, self.spec.head_size)
        self._give_sinks(backend)
        metadata = backend.build_metadata(self._batch(indices, spans, 0))
        backend.forward(0, q_thd, k_tkd, v_tkd, cache, metadata, torch.empty_like(q_thd))

    def run(
        self, backend: AttentionBackend, cache: torch.Tensor, metadata: Any = None
    ) -> torch.Tensor:
        """The backend's output [t, h, d]. If `metadata` is None, it is built for this step."""
        q_thd, k_tkd, v_tkd = self.inputs()
        out_thd = torch.full_like(q_thd, torch.nan)
        self._give_sinks(backend)
        metadata = backend.build_metadata(self.batch) if metadata is None else metadata
        backend.forward(0, q_thd, k_tkd, v_tkd, cache, metadata, out_thd)
        return out_thd

    def check(self, out_thd: torch.Tensor, *, spoiled: Collection[int] = ()) -> None:
        """Raise AssertionError, which names the sequence, if the output is wrong.

        The outputs of `spoiled` sequences are not checked.
        """
        bound = TOLERANCES[self.spec.dtype]
        outputs = torch.split(out_thd.double(), [s.num_queries for s in self.spans])
        for index, (span, actual) in enumerate(zip(self.spans, outputs, strict=True)):
            if index in spoiled:
                continue
            k_lkd, v_lkd = (self._stored(rows[index]) for rows in (self.k, self.v))
            last_keys_q = span.last_keys_q.to(actual.device) if self.spec.sees_ahead else None
            expected = reference_attention(
                self.spec, self.q[index], k_lkd, v_lkd, self.sinks_h, last_keys_q
            )
            is_close = torch.isclose(actual, expected, rtol=bound, atol=bound)
            assert is_close.all(), (
                f"sequence {index} of {len(self.spans)} ({span}, the first {self.num_decodes} are "
                f"decodes): {int((~is_close).sum())} of {is_close.numel()} numbers are wrong, by "
                f"at most {(actual - expected).abs().max():.3g}, first for query "
                f"{int((~is_close).flatten(1).any(1).nonzero()[0])}; {self.spec}"
            )

    def _give_sinks(self, backend: Any) -> None:
        if self.sinks_h is not None:
            backend.use_sinks([self.sinks_h])

    def _stored(self, rows: torch.Tensor) -> torch.Tensor:
        """Keys or values after they were rounded to the cache's type."""
        dtype = self.spec.kv_cache_dtype
        return rows if dtype is None else quantize(rows, dtype).to(self.spec.dtype)

    def _random(self, *shape: int) -> torch.Tensor:
        values = torch.randn(*shape, self.spec.head_size, generator=self._generator)
        return values.to(self.spec.device, self.spec.dtype)

    def _place(self) -> list[torch.Tensor]:
        counts = [-(-s.seq_len // self.spec.block_size) for s in self.spans]
        blocks = torch.randperm(sum(counts) + 2, generator=self._generator) + 1
        return list(torch.split(blocks[: sum(counts)], counts))

    def _batch(
        self, indices: Sequence[int], spans: Sequence[Span], num_decodes: int
    ) -> AttentionBatch:
        """A batch of some sequences; `indices` are their numbers in this step."""
        tables = [
            self.tables[i][: -(-s.seq_len // self.spec.block_size)]
            for i, s in zip(indices, spans, strict=True)
        ]
        slots = [
            slots_of(table, s.num_known, s.seq_len, self.spec.block_size)
            for table, s in zip(tables, spans, strict=True)
        ]
        lengths = [s.num_queries for s in spans]
        device = self.spec.device
        return AttentionBatch(
            query_start_loc=torch.tensor([0, *lengths]).cumsum(0).int().to(device),
            seq_lens=torch.tensor([s.seq_len for s in spans]).int().to(device),
            block_tables_bm=torch.nn.utils.rnn.pad_sequence(tables, True).int().to(device),
            slot_mapping_t=torch.cat(slots).to(device),
            query_lens_host=lengths,
            seq_lens_host=[s.seq_len for s in spans],
            num_decodes=num_decodes,
        )


def slots_of(table: torch.Tensor, start: int, end: int, block_size: int) -> torch.Tensor:
    """The cache slots of positions [start, end) of a sequence, int64."""
    positions = torch.arange(start, end)
    return table[positions // block_size] * block_size + positions % block_size
