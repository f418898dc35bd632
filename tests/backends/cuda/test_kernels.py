"""The CUDA kernels, run as C++ in an emulator, against float64: ragged batches, poisoned blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.backends.attention.steps import BATCHES, CHUNKS, DECODES, PROMPTS, VARIANTS, Span, Step
from tokenmill.backends.attention.base import AttentionSpec
from tokenmill.backends.cuda import attention as cuda_paged
from tokenmill.backends.cuda import splits
from tokenmill.backends.cuda.attention import CudaPagedAttention
from tokenmill.backends.cuda.build import HEAD_SIZES

from .emulation import EMULATED_SOURCES, EmulatedOperators

pytestmark = [pytest.mark.check, pytest.mark.depends_on(*EMULATED_SOURCES)]
SPEC = AttentionSpec(
    num_heads=6,
    num_kv_heads=2,
    head_size=64,
    block_size=16,
    dtype=torch.bfloat16,
    device=torch.device("cpu"),
    scale=0.125,
)
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}

by_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
by_path = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
"""One precision of each of the two ways to compute: row by row, and by tensor cores."""


def make_step(spec: AttentionSpec, sequences: Sequence[Span], seed: int = 0) -> Step:
    num_decodes = next((i for i, s in enumerate(sequences) if s.num_queries != 1), len(sequences))
    return Step(CudaPagedAttention, spec, sequences, num_decodes, seed)


def check(spec: AttentionSpec, sequences: Sequence[Span]) -> None:
    make_step(spec, sequences).check(TOLERANCES[spec.dtype])


@pytest.fixture
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device so large, and splits so small, that nearly all contexts are split."""
    monkeypatch.setattr(cuda_paged, "count_processors", lambda device: 1000)
    monkeypatch.setattr(splits, "_SMALLEST", 1)
    monkeypatch.setattr(splits, "_MULTIPLE", 24)


@by_dtype
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", BATCHES)
def test_equals_a_naive_float64_computation(
    kind: str, variant: str, dtype: torch.dtype, operators: EmulatedOperators
) -> None:
    check(replace(SPEC, dtype=dtype, **VARIANTS[variant]), BATCHES[kind][0])
    assert operators.num_split_calls == 0


@by_dtype
@pytest.mark.parametrize("variant", VARIANTS)
def test_splits_of_a_context_are_merged(
    variant: str, dtype: torch.dtype, operators: EmulatedOperators, small_splits: None
) -> None:
    check(replace(SPEC, dtype=dtype, **VARIANTS[variant]), DECODES)
    window = VARIANTS[variant].get("sliding_window", 300)
    assert operators.num_split_calls == (window > 24)


@by_dtype
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_works_with_every_head_size(
    head_size: int, dtype: torch.dtype, operators: EmulatedOperators, small_splits: None
) -> None:
    spec = replace(SPEC, head_size=head_size, scale=head_size**-0.5, dtype=dtype)
    check(spec, [*DECODES[-2:], *CHUNKS[2:4], PROMPTS[-1]])


@by_path
@pytest.mark.parametrize("block_size", [1, 8, 24, 32, 64, 256])
def test_works_with_any_block_size(
    block_size: int, dtype: torch.dtype, operators: EmulatedOperators
) -> None:
    spec = replace(SPEC, block_size=block_size, dtype=dtype)
    check(spec, [*DECODES[3:6], *CHUNKS])


@by_path
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads"), [(4, 4), (4, 1), (16, 1), (14, 2), (20, 1), (71, 1)]
)
def test_query_heads_share_kv_heads_in_any_ratio(
    num_heads: int,
    num_kv_heads: int,
    dtype: torch.dtype,
    operators: EmulatedOperators,
    small_splits: None,
) -> None:
    spec = replace(SPEC, num_heads=num_heads, num_kv_heads=num_kv_heads, dtype=dtype)
    check(spec, [*DECODES[3:6], *CHUNKS[:3]])


@by_path
@pytest.mark.parametrize("sliding_window", [None, 15, 16, 31])
def test_contexts_begin_and_end_anywhere_in_a_tile(
    sliding_window: int | None, dtype: torch.dtype, operators: EmulatedOperators
) -> None:
    ends = [15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 79]
    decodes = [Span(1, end) for end in ends]
    chunks = [Span(2 + end % 3, end) for end in ends]
    spec = replace(SPEC, num_heads=2, num_kv_heads=1, dtype=dtype, sliding_window=sliding_window)
    check(spec, [*decodes, *chunks])


@by_path
def test_one_call_serves_decodes_among_prompts(
    dtype: torch.dtype, operators: EmulatedOperators
) -> None:
    """The kernel for prompts stands alone."""
    sequences = [*PROMPTS, *DECODES[:5], *CHUNKS]
    Step(CudaPagedAttention, replace(SPEC, dtype=dtype), sequences, 0).check(TOLERANCES[dtype])


@by_path
def test_a_long_prompt_takes_many_tiles(dtype: torch.dtype, operators: EmulatedOperators) -> None:
    check(replace(SPEC, dtype=dtype, sliding_window=100), [Span(150, 301), Span(129, 129)])


@by_path
def test_a_sequence_without_queries_is_passed_over(
    dtype: torch.dtype, operators: EmulatedOperators
) -> None:
    check(replace(SPEC, dtype=dtype), [Span(0, 20), Span(3, 9), Span(0, 5), Span(1, 17)])


def test_an_empty_step_computes_nothing(operators: EmulatedOperators) -> None:
    step = make_step(SPEC, [Span(0, 3)])
    assert [x.shape for x in step.run()] == [torch.Size((0, 6, 64))]


@by_path
def test_scores_of_any_size_neither_overflow_nor_vanish(
    dtype: torch.dtype, operators: EmulatedOperators, small_splits: None
) -> None:
    """Growing along the sequence, so that the maximum is raised again and again."""
    step = make_step(replace(SPEC, dtype=dtype), [Span(1, 100), Span(40, 120)])
    for q, k in zip(step.q, step.k, strict=True):
        k[..., 1:] = 0
        k[..., 0] = torch.arange(float(k.shape[0])).unsqueeze(1) * 2
        q[..., 0] = torch.where(q[..., 0] > 0, 4.0, -4.0)
    step.cache = step.fill()
    step.check(max(TOLERANCES[dtype], 2e-4))


@by_path
def test_a_sequence_with_nan_does_not_spoil_its_neighbours(
    dtype: torch.dtype, operators: EmulatedOperators, small_splits: None
) -> None:
    step = make_step(replace(SPEC, dtype=dtype), BATCHES["mixed"][0])
    step.check_with_nan(2, 9, tolerance=TOLERANCES[dtype])


@by_path
@pytest.mark.parametrize("block_size", [8, 24])
def test_writes_the_step_s_keys_and_values_and_nothing_else(
    dtype: torch.dtype, block_size: int, operators: EmulatedOperators
) -> None:
    step = make_step(replace(SPEC, dtype=dtype, block_size=block_size), CHUNKS)
    step.run()
    per_token = 2 * SPEC.num_kv_heads * SPEC.head_size
    assert int(step.cache.isfinite().sum()) == per_token * sum(s.seq_len for s in step.sequences)
    keys, values = step.backend.capabilities.kv_cache_layouts[0].views(step.cache)
    written = torch.cat(step.slots)
    assert torch.equal(keys.flatten(0, 1)[written], torch.cat(step.k))
    assert torch.equal(values.flatten(0, 1)[written], torch.cat(step.v))


def test_a_slot_below_zero_is_written_nowhere(operators: EmulatedOperators) -> None:
    step = make_step(SPEC, CHUNKS)
    before = step.cache.clone()
    step.batch = replace(step.batch, slot_mapping_t=torch.full_like(step.batch.slot_mapping_t, -1))
    step.run()
    assert torch.equal(step.cache.view(torch.int16), before.view(torch.int16))


def test_takes_queries_keys_and_values_out_of_one_projection(
    operators: EmulatedOperators,
) -> None:
    step = make_step(SPEC, PROMPTS)
    expected = torch.cat(step.run())
    joined = torch.cat([torch.cat(x) for x in (step.q, step.k, step.v)], dim=1)
    q, k, v = joined.split([SPEC.num_heads, SPEC.num_kv_heads, SPEC.num_kv_heads], dim=1)
    metadata = step.backend.build_metadata(step.batch)
    for parts in ((q, k, v), [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v)]):
        out = torch.empty_like(expected)
        step.backend.forward(0, *parts, step.fill(), metadata, out)
        assert torch.equal(out, expected)


@by_path
def test_a_graph_s_memory_serves_batches_of_any_length(
    dtype: torch.dtype, operators: EmulatedOperators, small_splits: None
) -> None:
    """The same metadata, filled in anew; sequences that a batch lacks get zeros."""
    first = make_step(replace(SPEC, dtype=dtype), DECODES)
    backend = first.backend
    backend.begin_capture(10, 320)
    metadata = backend.prepare_capture(10)
    for step in (first, make_step(replace(SPEC, dtype=dtype), DECODES[2:5], seed=1)):
        num_seqs = len(step.sequences)
        backend.prepare_replay(step.batch, 10)
        q, k, v = (
            torch.nn.functional.pad(
                torch.cat([x[-1:] for x in parts]), (0, 0, 0, 0, 0, 10 - num_seqs)
            )
            for parts in (step.q, step.k, step.v)
        )
        out = torch.full_like(q, torch.nan)
        backend.forward(0, q, k, v, step.cache, metadata, out)
        expected = torch.cat(step.expected())
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(
            out[:num_seqs].double(), expected, rtol=tolerance, atol=tolerance
        )
        assert (out[num_seqs:] == 0).all()
