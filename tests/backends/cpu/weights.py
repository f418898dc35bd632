"""Random weights in every format, with the maximum error of a product with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from tokenmill.backends.cpu.native.library import InputPrecision, Layout
from tokenmill.backends.cpu.packed_weights import PackedLinear, pack_linear, pack_weights
from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks, gguf_weights
from tokenmill.backends.weights.packed import PackedWeights

FLOATS = ("float32", "bfloat16", "float16")
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Quantized formats, with the offsets of the half-precision numbers of a block."""
FORMATS = (*FLOATS, *HALVES)
ONE_OF_EACH_LAYOUT = (
    *FLOATS,
    *("Q4_1", "Q5_0", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"),
)
BLOCK = 32
OUTLIER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A matrix [out, in] in some format."""

    packed: PackedLinear
    exact: Tensor
    """float64, the same numbers."""
    magnitude: Tensor
    """At least the sum of the magnitudes of a weight's addends: with a minimum, it has two."""
    x_dtype: torch.dtype

    def used(self, x: Tensor) -> Tensor:
        """The inputs that a product uses for x, in float64."""
        precision = self.packed.struct.input_precision
        is_float = self.packed.layout in (Layout.F32, Layout.BF16, Layout.F16)
        if is_float or precision == InputPrecision.FLOAT:
            return x.double()
        return round_to_int8(x, twice=precision == InputPrecision.TWO_INT8)

    def product(self, x: Tensor) -> Tensor:
        """The exact product with the inputs that are used, in float64."""
        return self.used(x) @ self.exact.T

    def error_bound(self, x: Tensor) -> Tensor:
        """Of a float32 sum of exact products in any order: (terms + 6) * 2^-24 * sum |.|.

        The 6 are for the scales of inputs and weights, a minimum, and the bias.
        """
        return (x.shape[1] + 6) * 2.0**-24 * (self.used(x).abs() @ self.magnitude.T)


def round_to_int8(x: Tensor, *, twice: bool = False) -> Tensor:
    """Inputs rounded to int8, with a scale for each 32 of a row, in float64.

    Where the largest input of a block is more than four times the average of the row's blocks, or
    everywhere with `twice`, what rounding took off is rounded, too.
    """
    blocks = x.float().view(len(x), -1, BLOCK)
    largest = blocks.abs().amax(dim=2, keepdim=True).double()
    rounded = _round_blocks(blocks)
    rests = _round_blocks(blocks - rounded.float())
    limit = 0 if twice else OUTLIER
    has_rest = largest * blocks.shape[1] > limit * largest.sum(dim=1, keepdim=True)
    return (rounded + torch.where(has_rest, rests, 0.0)).view(x.shape)


def _round_blocks(blocks: Tensor) -> Tensor:
    largest = blocks.abs().amax(dim=2, keepdim=True)
    # torch would compute 127 / largest as 127 * (1 / largest), with another rounding.
    inverse = torch.where(largest < 1e-30, 0.0, torch.tensor(127.0).div(largest))
    return (blocks * inverse).round().double() * (largest / 127).double()


def random_blocks(kind: Kind, out: int, inputs: int) -> PackedWeights:
    """Random numbers of a GGUF type below 2, with scales of any sign."""
    generator = torch.Generator().manual_seed(out * 7919 + inputs)
    format = GGUFBlocks(kind)
    num_blocks, block_bytes = inputs // format.block_size, format.row_bytes(format.block_size)
    raw = torch.randint(256, (out, num_blocks, block_bytes), generator=generator).to(torch.uint8)
    for at in HALVES[kind.name]:
        raw[:, :, at + 1] = raw[:, :, at + 1] & 0x83 | (4 if format.block_size == 256 else 10) << 2
    if kind is Kind.MXFP4:
        raw[:, :, 0] = raw[:, :, 0] % 16 + 112
    return gguf_weights(kind, raw.view(out, -1))


def make_weights(
    format: str,
    out: int,
    inputs: int,
    *,
    up: bool = False,
    precision: InputPrecision = InputPrecision.INT8,
) -> Weights:
    """Random weights; with `up`, a gate of `out` rows and as many of up."""
    rows = 2 * out if up else out
    if format in FLOATS:
        generator = torch.Generator().manual_seed(out * 7919 + inputs)
        dtype = getattr(torch, format)
        values = (torch.randn(rows, inputs, generator=generator) * 0.1).to(dtype)
        exact = values.double()
        if dtype is torch.float16:
            gate, *others = (
                gguf_weights(Kind.F16, one.view(torch.uint8)) for one in values.split(out)
            )
            packed, dtype = pack_weights(gate, up=others[0] if others else None), torch.float32
        else:
            packed = pack_linear(values[:out], up=values[out:] if up else None, dtype=dtype)
        return Weights(packed=packed, exact=exact, magnitude=exact.abs(), x_dtype=dtype)
    blocks = random_blocks(Kind[format], rows, inputs)
    packed = pack_weights(
        blocks.narrow(0, 0, out),
        up=blocks.narrow(0, out, out) if up else None,
        inputs=precision,
    )
    exact = blocks.dequantize().double()
    largest = exact.view(rows, -1, BLOCK).abs().amax(dim=2)
    magnitude = 3 * largest.repeat_interleave(BLOCK, dim=1)
    return Weights(packed=packed, exact=exact, magnitude=magnitude, x_dtype=torch.bfloat16)
