"""The CUDA kernels over keys and values of 8 bits, in the emulator, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.backends.attention.steps import BATCHES, CHUNKS, DECODES, PROMPTS, VARIANTS, Span
from tokenmill.backends.attention.fp8 import FP8_DTYPES, quantize
from tokenmill.backends.cuda.build import HEAD_SIZES
from tokenmill.testing.conformance.attention.reference import reference_attention

from .emulation import EMULATED_SOURCES, EmulatedOperators
from .test_kernels import SPEC, TOLERANCES, by_dtype, check, make_step, small_splits

__all__ = ["small_splits"]
pytestmark = [pytest.mark.check, pytest.mark.depends_on(*EMULATED_SOURCES)]

by_kind = pytest.mark.parametrize("kind", FP8_DTYPES, ids=str)
ROUNDING = {torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3}
"""By what part of it a number may change."""


@by_kind
@by_dtype
@pytest.mark.parametrize("variant", ["plain", "window and cap"])
def test_equals_a_float64_computation_with_rounded_keys_and_values(
    variant: str, dtype: torch.dtype, kind: torch.dtype, operators: EmulatedOperators
) -> None:
    spec = replace(SPEC, dtype=dtype, kv_cache_dtype=kind, **VARIANTS[variant])
    check(spec, BATCHES["mixed"][0])
    assert operators.num_split_calls == 0


@by_kind
@by_dtype
def test_splits_of_a_context_are_merged(
    dtype: torch.dtype, kind: torch.dtype, operators: EmulatedOperators, small_splits: None
) -> None:
    check(replace(SPEC, dtype=dtype, kv_cache_dtype=kind), DECODES)
    assert operators.num_split_calls == 1


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(torch.bfloat16, torch.float8_e4m3fn), (torch.float16, torch.float8_e5m2)],
    ids=["bfloat16 and e4m3", "float16 and e5m2"],
)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_works_with_every_head_size(
    head_size: int,
    dtype: torch.dtype,
    kind: torch.dtype,
    operators: EmulatedOperators,
    small_splits: None,
) -> None:
    spec = replace(SPEC, head_size=head_size, scale=head_size**-0.5, dtype=dtype)
    spec = replace(spec, kv_cache_dtype=kind)
    check(spec, [*DECODES[-2:], *CHUNKS[2:4], PROMPTS[-1]])


@pytest.mark.parametrize("block_size", [1, 8, 24, 32, 64])
def test_works_with_any_block_size(block_size: int, operators: EmulatedOperators) -> None:
    spec = replace(SPEC, block_size=block_size, kv_cache_dtype=FP8_DTYPES[0])
    check(spec, [*DECODES[3:6], *CHUNKS])


@pytest.mark.parametrize("sliding_window", [None, 15, 33])
def test_contexts_begin_and_end_anywhere_in_a_tile(
    sliding_window: int | None, operators: EmulatedOperators
) -> None:
    ends = [15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 79, 127, 128, 129, 161]
    decodes = [Span(1, end) for end in ends]
    chunks = [Span(2 + end % 3, end) for end in ends]
    spec = replace(SPEC, num_heads=2, num_kv_heads=1, sliding_window=sliding_window)
    check(replace(spec, kv_cache_dtype=FP8_DTYPES[0]), [*decodes, *chunks])


@by_kind
@by_dtype
def test_writes_what_torch_rounds_the_step_s_keys_and_values_to_and_nothing_else(
    dtype: torch.dtype, kind: torch.dtype, operators: EmulatedOperators
) -> None:
    step = make_step(replace(SPEC, dtype=dtype, kv_cache_dtype=kind), CHUNKS)
    for rows in (*step.k, *step.v):
        rows *= 10.0 ** torch.randint(-4, 5, rows.shape, generator=step.generator)
    step.cache = step.fill()
    step.run()
    keys, values = step.backend.capabilities.kv_cache_layouts[0].views(step.cache)
    written = torch.cat(step.slots)
    for cached, rows in ((keys, step.k), (values, step.v)):
        codes = cached.flatten(0, 1).view(torch.uint8)
        assert torch.equal(codes[written], quantize(torch.cat(rows), kind).view(torch.uint8))
        codes[written] = 0
        others = codes.view(kind).float()
        assert int(others.isnan().sum()) == others.numel() - written.numel() * rows[0][0].numel()


@by_kind
@by_dtype
def test_rounding_changes_results_by_no_more_than_it_can(
    dtype: torch.dtype, kind: torch.dtype, operators: EmulatedOperators
) -> None:
    """A part u of each value, and weights by the exponential of a part u of each product."""
    step = make_step(replace(SPEC, dtype=dtype, kv_cache_dtype=kind), [Span(1, 131), Span(40, 90)])
    u = ROUNDING[kind]
    for actual, q, k, v in zip(step.run(), step.q, step.k, step.v, strict=True):
        exact = reference_attention(step.spec, q, k, v)
        group = SPEC.num_heads // SPEC.num_kv_heads
        k_hld = k.double().abs().repeat_interleave(group, dim=1).transpose(0, 1)
        most = (q.double().abs().transpose(0, 1) @ k_hld.mT).amax(dim=2).T * SPEC.scale * u
        bound = (torch.exp(2 * most) * (1 + u) - 1) * v.double().abs().max() + TOLERANCES[dtype]
        error = (actual.double() - exact).abs()
        assert (error <= bound.unsqueeze(2)).all()
        assert 0 < error.mean() < u / 2


@by_kind
def test_a_sequence_with_nan_does_not_spoil_its_neighbours(
    kind: torch.dtype, operators: EmulatedOperators, small_splits: None
) -> None:
    step = make_step(replace(SPEC, kv_cache_dtype=kind), BATCHES["mixed"][0])
    step.check_with_nan(2, 9, tolerance=2e-2)
