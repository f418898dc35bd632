"""Keys and values of 8 bits: every number there is, and those halfway between two, are rounded and
read as torch does it. The conformance suite has whole steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tokenmill.backends.attention.fp8 import FP8_DTYPES, movable, quantize
from tokenmill.testing.conformance.attention.steps import Span, Step

from .cases import SPEC
from .contenders import load_for, skip_without_device

skip_without_device()

NUM_TOKENS = 16


def numbers_of(kind: torch.dtype) -> torch.Tensor:
    """All finite ones of the type, what lies halfway between them, and what is too large or NaN."""
    codes = torch.arange(128, dtype=torch.uint8).view(kind).float()
    finite = codes[codes.isfinite()]
    middles = (finite[:-1] + finite[1:]) / 2
    largest = torch.finfo(kind).max
    others = torch.tensor([1.1 * largest, 65504.0, torch.inf, torch.nan])
    positive = torch.cat([finite, middles, middles * (1 + 2**-7), middles * (1 - 2**-7), others])
    return torch.cat([positive, -positive])


@pytest.mark.parametrize("are_decodes", [True, False], ids=["decodes", "prompts"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", FP8_DTYPES, ids=str)
def test_every_number_is_rounded_and_read(
    backend_name: str, kind: torch.dtype, dtype: torch.dtype, are_decodes: bool
) -> None:
    """A sequence of one token has that token's values for its result."""
    spec = replace(SPEC, dtype=dtype, kv_cache_dtype=kind)
    backend = load_for(backend_name, spec)
    num_decodes = NUM_TOKENS if are_decodes else 0
    step = Step(spec, [Span(num_queries=1, seq_len=1)] * NUM_TOKENS, num_decodes)
    shape = (NUM_TOKENS, spec.num_kv_heads, spec.head_size)
    numbers = numbers_of(kind).to(dtype)
    repeats = -(-torch.Size(shape).numel() // numbers.numel())
    rows = numbers.repeat(repeats)[: torch.Size(shape).numel()].view(shape).to(spec.device)
    step.v = list(rows.split(1))
    made = backend(spec)
    cache = step.new_cache(made)
    expected = quantize(rows, kind).to(dtype)
    group = spec.num_heads // spec.num_kv_heads
    torch.testing.assert_close(
        step.run(made, cache), expected.repeat_interleave(group, 1), rtol=0, atol=0, equal_nan=True
    )
    values = backend.capabilities.kv_cache_layouts[0].views(cache)[1]
    blocks = torch.cat(step.tables).to(spec.device)
    written = movable(values)[blocks, 0]
    isnan = expected.isnan()
    assert torch.equal(written[~isnan], movable(quantize(rows, kind))[~isnan])
