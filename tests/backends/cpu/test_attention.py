"""The native attention backend against float64, over ragged batches and poisoned blocks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from tests.backends.attention import steps
from tests.backends.attention.steps import (
    BATCHES,
    CHUNKS,
    DECODES,
    IMAGES,
    PROMPTS,
    VARIANTS,
    Span,
    Step,
)
from tokenmill.backends import offers
from tokenmill.backends.attention.base import AttentionBackend, AttentionSpec
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.cpu import attention as cpu
from tokenmill.backends.cpu.attention import CPUAttention
from tokenmill.backends.cpu.attention_ops import AttentionOps
from tokenmill.backends.cpu.native.library import Library
from tokenmill.backends.cpu.native.structures import AttentionBatchStruct, AttentionSpecStruct
from tokenmill.backends.machine.compiling import BuildError
from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.contract.registry import Registry

pytestmark = pytest.mark.usefixtures("library")

SPEC = replace(steps.SPEC, head_size=32, block_size=16)
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
LONG = [Span(1, n) for n in (127, 128, 129, 256, 257, 600)] + [
    Span(n, m) for n, m in ((3, 1200), (60, 1100), (17, 1030), (2, 64), (17, 65), (1100, 1100))
]
"""Sequences that end around the ends of spans of 64 keys and of chunks of 128 and 1024."""

SINKS: dict[str, dict[str, Any]] = {
    "sinks": {"has_sinks": True},
    "window, cap and sinks": {"has_sinks": True, **VARIANTS["window and cap"]},
}

by_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def make_step(spec: AttentionSpec, sequences: list[Span], seed: int = 0) -> Step:
    num_decodes = next((i for i, s in enumerate(sequences) if s.num_queries != 1), len(sequences))
    return Step(CPUAttention, spec, sequences, num_decodes, seed)


def check(spec: AttentionSpec, sequences: list[Span]) -> None:
    make_step(spec, sequences).check(TOLERANCES[spec.dtype])


@pytest.mark.usefixtures("instruction_set")
@by_dtype
@pytest.mark.parametrize("variant", VARIANTS | SINKS | IMAGES)
@pytest.mark.parametrize("kind", BATCHES)
def test_equals_a_naive_float64_computation(kind: str, variant: str, dtype: torch.dtype) -> None:
    check(
        replace(SPEC, dtype=dtype, **(VARIANTS | SINKS | IMAGES)[variant]), list(BATCHES[kind][0])
    )


@pytest.mark.usefixtures("instruction_set")
@by_dtype
@pytest.mark.parametrize("block_size", [8, 16, 24, 32, 40, 64])
def test_works_with_any_block_size(block_size: int, dtype: torch.dtype) -> None:
    spec = replace(SPEC, block_size=block_size, dtype=dtype)
    check(spec, list(BATCHES["mixed"][0]))
    check(replace(spec, sliding_window=37), list(BATCHES["mixed"][0]))


@pytest.mark.usefixtures("instruction_set")
@by_dtype
@pytest.mark.parametrize("head_size", [16, 48, 64, 80, 96, 112, 128, 256])
def test_works_with_any_head_size(head_size: int, dtype: torch.dtype) -> None:
    spec = replace(SPEC, head_size=head_size, dtype=dtype, scale=head_size**-0.5)
    check(spec, list(BATCHES["mixed"][0]))


@pytest.mark.usefixtures("instruction_set")
@by_dtype
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads"), [(6, 1), (6, 3), (6, 6), (4, 1), (14, 2), (32, 2), (71, 1)]
)
def test_query_heads_share_kv_heads_in_any_ratio(
    num_heads: int, num_kv_heads: int, dtype: torch.dtype
) -> None:
    spec = replace(SPEC, num_heads=num_heads, num_kv_heads=num_kv_heads, dtype=dtype)
    check(spec, [*DECODES[::2], *CHUNKS])


@pytest.mark.usefixtures("instruction_set")
@by_dtype
@pytest.mark.parametrize("variant", ["plain", "window and cap", "sinks", "window and images"])
def test_chunks_of_a_long_context_are_merged(variant: str, dtype: torch.dtype) -> None:
    step = make_step(replace(SPEC, dtype=dtype, **(VARIANTS | SINKS | IMAGES)[variant]), LONG)
    for actual, expected in zip(step.run(), expected_of(variant, dtype), strict=True):
        torch.testing.assert_close(
            actual.double(), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]
        )


@cache
def expected_of(variant: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """In float64; half a second, and the same for every instruction set."""
    return make_step(
        replace(SPEC, dtype=dtype, **(VARIANTS | SINKS | IMAGES)[variant]), LONG
    ).expected()


def test_each_layer_has_its_own_sinks() -> None:
    step = make_step(replace(SPEC, has_sinks=True), PROMPTS)
    expected = torch.cat(step.run())
    assert step.sinks_h is not None
    step.backend.use_sinks([step.sinks_h - 5, step.sinks_h])  # type: ignore[attr-defined]
    out = [torch.empty_like(expected) for _ in range(2)]
    metadata = step.backend.build_metadata(step.batch)
    for layer in (0, 1):
        given = [torch.cat(x) for x in (step.q, step.k, step.v)]
        step.backend.forward(layer, *given, step.fill(), metadata, out[layer])
    assert torch.equal(out[1], expected)
    assert not torch.allclose(out[0], expected, atol=1e-3)


@pytest.mark.parametrize("sink", [-1e4, 1e4])
def test_a_sink_may_be_far_from_all_scores(sink: float) -> None:
    """Then it changes nothing, or takes all of the weight."""
    step = make_step(replace(SPEC, has_sinks=True), list(BATCHES["mixed"][0]))
    step.backend.use_sinks([torch.full((SPEC.num_heads,), sink)])  # type: ignore[attr-defined]
    without = make_step(SPEC, list(BATCHES["mixed"][0]))
    for found, plain in zip(step.run(), without.run(), strict=True):
        assert torch.equal(found, plain if sink < 0 else torch.zeros_like(plain))


@by_dtype
def test_equals_the_torch_backend(dtype: torch.dtype) -> None:
    sequences = [*DECODES, *CHUNKS, *PROMPTS]
    spec = replace(SPEC, dtype=dtype)
    tolerance = 1e-5 if dtype is torch.float32 else TOLERANCES[dtype]
    ours = make_step(spec, sequences).run()
    theirs = Step(TorchAttention, spec, sequences, len(DECODES)).run()
    for actual, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("instruction_set")
@by_dtype
def test_scores_of_any_size_neither_overflow_nor_vanish(dtype: torch.dtype) -> None:
    """Growing along the sequence, so that the maximum is raised again and again. Scores of 1400 are
    themselves only known to 1e-4 in float32."""
    step = make_step(replace(SPEC, dtype=dtype), [Span(1, 300), Span(40, 700)])
    for q, k in zip(step.q, step.k, strict=True):
        k[..., 1:] = 0
        k[..., 0] = torch.arange(float(k.shape[0])).unsqueeze(1) * 2
        q[..., 0] = torch.where(q[..., 0] > 0, 4.0, -4.0)
    step.cache = step.fill()
    step.check(max(TOLERANCES[dtype], 2e-4))


@pytest.mark.usefixtures("instruction_set")
@by_dtype
def test_a_sequence_without_queries_is_passed_over(dtype: torch.dtype) -> None:
    check(replace(SPEC, dtype=dtype), [Span(0, 20), Span(3, 9), Span(0, 5), Span(1, 17)])


@pytest.mark.usefixtures("instruction_set")
@by_dtype
def test_a_sequence_with_nan_does_not_spoil_its_neighbours(dtype: torch.dtype) -> None:
    step = make_step(replace(SPEC, dtype=dtype), list(BATCHES["mixed"][0]))
    step.check_with_nan(2, 9, tolerance=TOLERANCES[dtype])


@pytest.mark.usefixtures("instruction_set")
@by_dtype
def test_a_single_nan_is_seen_by_the_queries_after_it(dtype: torch.dtype) -> None:
    """In a key or in a value: a request whose numbers broke must not go on unnoticed."""
    for part in ("k", "v"):
        step = make_step(replace(SPEC, dtype=dtype), [Span(1, 200), Span(30, 90)])
        for tensor in getattr(step, part):
            tensor[33, 1, 5] = torch.nan
        step.cache = step.fill()
        for attended in step.run():
            broken = attended[:, 3:]
            assert (broken if part == "k" else broken[..., 5]).isnan().all()
            assert attended[:, :3].isfinite().all()


@pytest.mark.usefixtures("instruction_set")
@by_dtype
@pytest.mark.parametrize("block_size", [8, 16])
def test_writes_the_step_s_keys_and_values_and_nothing_else(
    dtype: torch.dtype, block_size: int
) -> None:
    step = make_step(replace(SPEC, dtype=dtype, block_size=block_size), list(BATCHES["mixed"][0]))
    step.run()
    per_token = 2 * SPEC.num_kv_heads * SPEC.head_size
    assert int(step.cache.isfinite().sum()) == per_token * sum(s.seq_len for s in step.sequences)


@pytest.mark.parametrize("num_threads", [1, 3, 5, 7, 40])
@by_dtype
def test_any_number_of_threads_gives_the_same_bits(
    dtype: torch.dtype, num_threads: int, library: Library, restore_threads: None
) -> None:
    """Also more than there are sequences or chunks."""
    step = make_step(replace(SPEC, dtype=dtype), LONG)
    library.set_threads(2)
    expected = step.run()
    library.set_threads(num_threads)
    for actual, before in zip(step.run(), expected, strict=True):
        assert torch.equal(actual, before)


@by_dtype
def test_a_sequence_gives_the_same_bits_alone_and_among_others(dtype: torch.dtype) -> None:
    spec = replace(SPEC, dtype=dtype)
    step = make_step(spec, LONG)
    together = step.run()
    for index, span in enumerate(LONG):
        alone = make_step(spec, [span])
        alone.q, alone.k, alone.v = [step.q[index]], [step.k[index]], [step.v[index]]
        alone.cache = alone.fill()
        assert torch.equal(alone.run()[0], together[index])


@pytest.mark.usefixtures("restore_threads")
def test_a_plan_too_large_for_memory_is_an_error_and_the_next_one_works(library: Library) -> None:
    """One sequence of 2^31 keys with heads of 2^30, shared by two threads, needs 2^60 bytes."""
    library.set_threads(2)
    ops = AttentionOps(library)
    spec = AttentionSpecStruct(16, 1, 1 << 30, 16, 0, 0, 1.0, 0.0)
    starts, lens = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([2**31 - 1]).int()
    batch = AttentionBatchStruct(1, starts.data_ptr(), lens.data_ptr(), 0, 0)
    with pytest.raises(MemoryError, match="attention plan of 1 sequences"):
        ops.plan(spec, batch)
    check(SPEC, DECODES)


def test_takes_queries_keys_and_values_out_of_one_projection() -> None:
    step = make_step(SPEC, PROMPTS)
    expected = torch.cat(step.run())
    joined = torch.cat([torch.cat(x) for x in (step.q, step.k, step.v)], dim=1)
    q, k, v = joined.split([SPEC.num_heads, SPEC.num_kv_heads, SPEC.num_kv_heads], dim=1)
    out = torch.empty_like(expected)
    metadata = step.backend.build_metadata(step.batch)
    step.backend.forward(0, q, k, v, step.fill(), metadata, out)
    assert torch.equal(out, expected)
    heads_apart = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v)]
    step.backend.forward(0, *heads_apart, step.fill(), metadata, out.zero_())
    assert torch.equal(out, expected)


def test_copies_blocks_in_order() -> None:
    """A block that was a target may be the source of a later pair."""
    backend = CPUAttention(SPEC)
    cache = torch.arange(4.0).view(4, 1, 1, 1, 1).expand(backend.kv_cache_shape(4)).clone()
    backend.copy_blocks(cache, cache, [(3, 0), (0, 1)])
    assert [cache[block].mean() for block in range(4)] == [3, 3, 2, 3]


def test_says_every_reason_against_a_spec() -> None:
    spec = replace(
        SPEC,
        dtype=torch.float16,
        device=torch.device("meta"),
        num_kv_heads=4,
        head_size=24,
        block_size=5,
        scale=-1.0,
    )
    assert len(CPUAttention.reasons_against(spec)) == 6
    assert CPUAttention.reasons_against(SPEC) == []


def test_says_why_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Library:
        raise BuildError("no C++ compiler was found")

    monkeypatch.setattr(cpu, "load_library", fail)
    assert CPUAttention.reasons_against(SPEC) == ["no C++ compiler was found"]


def test_is_offered_under_the_name_cpu() -> None:
    registry = Registry()
    with registry.accepting(Source(plugin="cpu-attention")):
        offers.cpu_attention.register(registry)
    offered: type[AttentionBackend] = registry.build("attention_backend", "cpu")
    assert offered is CPUAttention
