"""TorchAttention against a naive float64 computation, over ragged batches and poisoned blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tokenmill.backends.attention.base import AttentionBatch, AttentionSpec
from tokenmill.backends.attention.torch import TorchAttention

SPEC = AttentionSpec(
    num_heads=6,
    num_kv_heads=2,
    head_size=16,
    block_size=8,
    dtype=torch.float32,
    device=torch.device("cpu"),
    scale=0.25,
)


@dataclass(frozen=True)
class Span:
    """Tokens of one sequence: all its keys, and how many of them are queried in this step."""

    num_queries: int
    seq_len: int


DECODES = [Span(1, n) for n in (1, 7, 8, 9, 40, 130, 131, 300)]
PROMPTS = [Span(n, n) for n in (2, 8, 33, 70)]
CHUNKS = [Span(n, m) for n, m in ((2, 3), (8, 24), (5, 61), (40, 47), (1, 30))]


class Step:
    """A random step: caches that are NaN wherever no token of a sequence lies."""

    def __init__(
        self, spec: AttentionSpec, sequences: Sequence[Span], num_decodes: int, seed: int = 0
    ) -> None:
        self.spec, self.sequences = spec, sequences
        self.generator = torch.Generator().manual_seed(seed)
        self.backend = TorchAttention(spec)
        lengths = [s.num_queries for s in sequences]
        self.q = [self._random(n, spec.num_heads) for n in lengths]
        self.k = [self._random(s.seq_len, spec.num_kv_heads) for s in sequences]
        self.v = [self._random(s.seq_len, spec.num_kv_heads) for s in sequences]
        self.slots = self._place()
        self.cache = self._fill()
        self.batch = self._batch(num_decodes)

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

    def _fill(self) -> torch.Tensor:
        """The cache before the step: only the tokens before the queries are there."""
        shape = self.backend.kv_cache_shape(self.num_blocks)
        cache = torch.full(shape, torch.nan, dtype=self.spec.dtype, device=self.spec.device)
        flat = cache.view(2, -1, *shape[3:])
        for s, slots, k, v in zip(self.sequences, self.slots, self.k, self.v, strict=True):
            known = s.seq_len - s.num_queries
            flat[0, slots[:known]], flat[1, slots[:known]] = k[:known], v[:known]
        return cache

    def _batch(self, num_decodes: int) -> AttentionBatch:
        query_lens = [s.num_queries for s in self.sequences]
        tables = torch.nn.utils.rnn.pad_sequence(self.tables, batch_first=True)
        new_slots = [slots[-n:] for slots, n in zip(self.slots, query_lens, strict=True)]
        device = self.spec.device
        return AttentionBatch(
            query_start_loc=torch.tensor([0, *query_lens]).cumsum(0).int().to(device),
            seq_lens=torch.tensor([s.seq_len for s in self.sequences]).int().to(device),
            block_tables_bm=tables.int().to(device),
            slot_mapping_t=torch.cat(new_slots).to(device),
            query_lens_host=query_lens,
            seq_lens_host=[s.seq_len for s in self.sequences],
            num_decodes=num_decodes,
        )

    def run(self) -> list[torch.Tensor]:
        """The backend's output per sequence."""
        lengths = self.batch.query_lens_host
        new_k = torch.cat([k[-n:] for k, n in zip(self.k, lengths, strict=True)])
        new_v = torch.cat([v[-n:] for v, n in zip(self.v, lengths, strict=True)])
        q = torch.cat(self.q)
        out = torch.full_like(q, torch.nan)
        metadata = self.backend.build_metadata(self.batch)
        self.backend.forward(0, q, new_k, new_v, self.cache, metadata, out)
        return list(torch.split(out, list(lengths)))

    def expected(self) -> list[torch.Tensor]:
        """Query by query, in float64."""
        return [_attend(self.spec, q, k, v) for q, k, v in zip(self.q, self.k, self.v, strict=True)]

    def check(self, tolerance: float = 2e-6) -> None:
        for actual, expected in zip(self.run(), self.expected(), strict=True):
            torch.testing.assert_close(
                actual.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=False
            )


def _attend(spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = q.double(), k.double(), v.double()
    k, v = (x.repeat_interleave(spec.num_heads // spec.num_kv_heads, dim=1) for x in (k, v))
    rows = []
    for index, query in enumerate(q):
        end = k.shape[0] - q.shape[0] + index + 1
        start = max(0, end - (spec.sliding_window or end))
        scores = torch.einsum("hd,lhd->hl", query, k[start:end]) * spec.scale
        if spec.logits_soft_cap is not None:
            scores = spec.logits_soft_cap * torch.tanh(scores / spec.logits_soft_cap)
        rows.append(torch.einsum("hl,lhd->hd", scores.softmax(-1), v[start:end]))
    return torch.stack(rows)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sliding window": {"sliding_window": 11},
    "sliding window of one token": {"sliding_window": 1},
    "soft cap": {"logits_soft_cap": 0.7},
    "window and cap": {"sliding_window": 37, "logits_soft_cap": 0.7},
}
BATCHES = {
    "decodes": (DECODES, len(DECODES)),
    "prompts": (PROMPTS, 0),
    "chunks": (CHUNKS, 0),
    "mixed": ([*DECODES, *CHUNKS, *PROMPTS], len(DECODES)),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", BATCHES)
def test_equals_a_naive_float64_computation(kind: str, variant: str) -> None:
    sequences, num_decodes = BATCHES[kind]
    Step(replace(SPEC, **VARIANTS[variant]), sequences, num_decodes).check()


@pytest.mark.parametrize("block_size", [1, 5, 8, 16, 32])
def test_works_with_any_block_size(block_size: int) -> None:
    sequences, num_decodes = BATCHES["mixed"]
    Step(replace(SPEC, block_size=block_size), sequences, num_decodes, seed=block_size).check()


@pytest.mark.parametrize("num_kv_heads", [1, 3, 6])
def test_query_heads_share_kv_heads_in_any_ratio(num_kv_heads: int) -> None:
    sequences, num_decodes = BATCHES["mixed"]
    Step(replace(SPEC, num_kv_heads=num_kv_heads), sequences, num_decodes).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_stay_within_their_rounding(dtype: torch.dtype) -> None:
    sequences, num_decodes = BATCHES["mixed"]
    Step(replace(SPEC, dtype=dtype), sequences, num_decodes).check(tolerance=2e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_computes_the_same() -> None:
    sequences, num_decodes = BATCHES["mixed"]
    Step(replace(SPEC, device=torch.device("cuda")), sequences, num_decodes).check(tolerance=1e-4)


def test_long_chunks_are_computed_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.backends.attention.torch._MAX_MASK_SIZE", 200)
    Step(replace(SPEC, sliding_window=20), [*CHUNKS, *PROMPTS], 0).check()


def test_writes_the_step_s_keys_and_values_and_nothing_else() -> None:
    """Every token lands in its slot; all other slots keep what they held."""
    step = Step(SPEC, *BATCHES["mixed"])
    step.run()
    flat = step.cache.view(2, -1, SPEC.num_kv_heads, SPEC.head_size)
    written = torch.cat(step.slots)
    assert torch.equal(flat[0, written], torch.cat(step.k))
    assert torch.equal(flat[1, written], torch.cat(step.v))
    rest = torch.ones(flat.shape[1], dtype=torch.bool).index_fill_(0, written, False)
    assert flat[:, rest].isnan().all()


def test_a_sequence_with_nan_does_not_spoil_its_neighbours() -> None:
    step = Step(SPEC, *BATCHES["mixed"])
    for index in (2, 9):
        step.k[index].fill_(torch.nan)
    step.cache = step._fill()
    for index, (actual, expected) in enumerate(zip(step.run(), step.expected(), strict=True)):
        if index in (2, 9):
            assert actual.isnan().all()
        else:
            torch.testing.assert_close(actual.double(), expected, rtol=2e-6, atol=2e-6)


def test_copies_blocks_in_order() -> None:
    """A block that was a target may be the source of a later pair."""
    backend = TorchAttention(SPEC)
    cache = torch.arange(4.0).view(1, 4, 1, 1, 1).expand(backend.kv_cache_shape(4)).clone()
    backend.copy_blocks(cache, cache, [(3, 0), (0, 1)])
    assert [cache[0, block].mean() for block in range(4)] == [3, 3, 2, 3]


def test_says_every_reason_against_a_spec() -> None:
    spec = replace(SPEC, dtype=torch.float64, device=torch.device("meta"), num_kv_heads=4)
    assert len(TorchAttention.reasons_against(spec)) == 3
    assert TorchAttention.reasons_against(SPEC) == []
