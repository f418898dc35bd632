"""--quantize-on-load: as good as ggml's own quantization, in blocks that GGUF readers decode."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks
from tokenmill.backends.weights.formats.quantizing import kind_on_load, quantize
from tokenmill.backends.weights.packed import PackedWeights, Weights
from tokenmill.core.errors import ConfigError

from .sample_numbers import make_numbers
from .test_gguf_blocks import BLOCKS

KINDS = [Kind.Q8_0, Kind.Q4_0, Kind.Q4_K]


def error(values: torch.Tensor, numbers: torch.Tensor) -> float:
    """Root-mean-square error as a fraction of the numbers' root mean square."""
    return float((values - numbers).norm() / numbers.norm())


def random_matrix(num_outputs: int, num_inputs: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(num_outputs, num_inputs, generator=draw) * 0.03


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0])
def test_the_blocks_are_those_of_the_gguf_package(kind: Kind) -> None:
    numbers = random_matrix(300, 640)
    expected = gguf.quants.quantize(numbers.numpy(), kind)
    assert np.array_equal(quantize(numbers, kind).planes[0].numpy(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_is_at_most_one_percent_above_that_of_ggml(kind: Kind) -> None:
    numbers = torch.from_numpy(make_numbers())
    theirs = PackedWeights(GGUFBlocks(kind), (4, 256), (BLOCKS[kind.name],)).dequantize()
    ours = quantize(numbers, kind).dequantize()
    for row in range(4):  # whose numbers have different sizes
        assert error(ours[row], numbers[row]) <= 1.01 * error(theirs[row], numbers[row])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shift=st.floats(-3, 3), size=st.floats(0.2, 100))
def test_every_number_is_within_a_step(kind: Kind, seed: int, shift: float, size: float) -> None:
    numbers = (random_matrix(3, 256, seed) + shift * 0.03) * size
    blocks = numbers.reshape(-1, 32)
    # Positive numbers share a range that begins at 0. Q4_K's scales are rounded to 6 bits.
    reach = blocks.amax(1).clamp(min=0) - blocks.amin(1).clamp(max=0)
    step = {Kind.Q8_0: 1 / 127, Kind.Q4_0: 1 / 8, Kind.Q4_K: 1 / 12}[kind] * reach
    if kind is Kind.Q4_K:
        step += reach.view(3, 8).amax(1).repeat_interleave(8) / 63
    ours = quantize(numbers, kind).dequantize().reshape(-1, 32)
    assert ((ours - blocks).abs().amax(1) <= step).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_equal_numbers_keep_them(kind: Kind) -> None:
    for value in (0.0, 1.0, -1.0, 2.0**-6):
        numbers = torch.full((2, 256), value, dtype=torch.bfloat16)
        ours = quantize(numbers, kind).dequantize()
        torch.testing.assert_close(ours, numbers.float(), rtol=0.02, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_the_others(kind: Kind) -> None:
    numbers = random_matrix(700, 512).to(torch.bfloat16)  # several chunks
    blocks = quantize(numbers, kind).planes[0]
    assert torch.equal(quantize(numbers[655:656], kind).planes[0], blocks[655:656])


def loaded(weights: torch.Tensor, name: str) -> Weights:
    """A matrix as --quantize-on-load leaves it."""
    kind = kind_on_load(name, weights.shape[1])
    return weights if kind is None else quantize(weights, kind)


def test_rows_that_the_blocks_do_not_fill_get_smaller_blocks_or_stay() -> None:
    found = {
        (name, num_inputs): loaded(random_matrix(2, num_inputs), name)
        for name in ("q8_0", "q4_0", "q4_k")
        for num_inputs in (512, 576, 40)
    }
    formats = {
        key: weights.format.name if isinstance(weights, PackedWeights) else None
        for key, weights in found.items()
    }
    assert formats == {
        ("q8_0", 512): "Q8_0",
        ("q8_0", 576): "Q8_0",
        ("q8_0", 40): None,
        ("q4_0", 512): "Q4_0",
        ("q4_0", 576): "Q4_0",
        ("q4_0", 40): None,
        ("q4_k", 512): "Q4_K",
        ("q4_k", 576): "Q4_0",
        ("q4_k", 40): None,
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    numbers = random_matrix(2, 256)
    numbers[1, 7] = value
    with pytest.raises(ConfigError, match="not finite cannot be quantized to Q8_0"):
        quantize(numbers, Kind.Q8_0)
