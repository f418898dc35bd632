"""Random weights in every format, with what a product with them may be wrong by."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from tokenmill.backends.cpu.packed_weights import PackedLinear, pack_gguf, pack_linear
from tokenmill.backends.weights.formats.gguf_blocks import gguf_weights

FORMATS = ("float32", "bfloat16", "Q4_0", "Q4_1", "Q8_0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A matrix [out, in] in some format."""

    packed: PackedLinear
    exact: Tensor
    """float64, the same numbers."""
    magnitude: Tensor
    """What is summed for a weight, in absolute value: with a minimum, that and the rest."""
    x_dtype: torch.dtype


def make_weights(format: str, out: int, inputs: int, *, up: bool = False) -> Weights:
    """Weights like a model's; with `up`, a gate of `out` rows and as many of up."""
    generator = torch.Generator().manual_seed(out * 7919 + inputs)
    values = torch.randn(2 * out if up else out, inputs, generator=generator) * 0.1
    if format in ("float32", "bfloat16"):
        dtype = getattr(torch, format)
        packed = pack_linear(values[:out], up=values[out:] if up else None, dtype=dtype)
        exact = values.to(dtype).double()
        return Weights(packed=packed, exact=exact, magnitude=exact.abs(), x_dtype=dtype)
    kind = GGMLQuantizationType[format]
    raw: NDArray[np.uint8] = gguf.quantize(values.numpy(), kind).reshape(len(values), -1)
    exact = torch.from_numpy(gguf.dequantize(raw, kind)).reshape(values.shape).double()
    minimum = torch.zeros_like(exact)
    if format == "Q4_1":
        blocks = np.ascontiguousarray(raw.reshape(len(values), -1, 20)[:, :, 2:4])
        each = torch.from_numpy(blocks.view(np.float16).astype(np.float64))
        minimum = each.expand(-1, -1, 32).reshape(exact.shape)
    gate = gguf_weights(kind, torch.from_numpy(raw[:out]))
    packed = pack_gguf(gate, up=gguf_weights(kind, torch.from_numpy(raw[out:])) if up else None)
    magnitude = (exact - minimum).abs() + minimum.abs()
    return Weights(packed=packed, exact=exact, magnitude=magnitude, x_dtype=torch.bfloat16)


def error_bound(x: Tensor, weights: Weights) -> Tensor:
    """Of a float32 sum of exact products in any order, per result: (terms + 3) * 2^-24 * sum |.|.

    The 3 are for the scale of a block, its minimum, and the bias.
    """
    return (x.shape[1] + 3) * 2.0**-24 * (x.double().abs() @ weights.magnitude.T)
