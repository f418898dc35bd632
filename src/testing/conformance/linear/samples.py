"""Random matrices in many formats, for the suite of linear backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import gguf
import torch
from gguf import GGMLQuantizationType as Kind

from ....backends.weights.formats.gguf_blocks import gguf_weights
from ....backends.weights.packed import PackedWeights, Weights

_SCALES: Mapping[Kind, Sequence[int]] = {
    Kind.Q4_0: (0,),
    Kind.Q4_1: (0, 2),
    Kind.Q5_0: (0,),
    Kind.Q5_1: (0, 2),
    Kind.Q8_0: (0,),
    Kind.Q2_K: (80, 82),
    Kind.Q3_K: (108,),
    Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,),
    Kind.IQ4_NL: (0,),
    Kind.IQ4_XS: (0,),
}
"""By GGUF type: offsets of a block's half-precision scales. All other bytes may be random."""
_LARGEST_SCALE = 2.0**-8

FORMATS = tuple(kind.name for kind in _SCALES)
"""Names of the formats that `packed_matrix` makes."""


def dense_matrix(num_outputs: int, num_inputs: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A random matrix in floating point, with numbers like a model's."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(num_outputs, num_inputs, generator=generator) * 0.1).to(dtype)


def packed_matrix(name: str, num_outputs: int, num_inputs: int, seed: int) -> PackedWeights:
    """A random matrix of one of FORMATS. `num_inputs` is a multiple of 256."""
    kind = Kind[name]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    generator = torch.Generator().manual_seed(seed)
    shape = (num_outputs, num_inputs // block_size, block_bytes)
    blocks = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    for offset in _SCALES[kind]:
        scales = torch.rand(*shape[:2], 1, generator=generator) * _LARGEST_SCALE
        blocks[:, :, offset : offset + 2] = scales.half().view(torch.uint8)
    return gguf_weights(kind, blocks.flatten(1))


def dense(weights: Weights) -> torch.Tensor:
    """The numbers of a matrix, in float64 on the CPU."""
    numbers = weights.dequantize() if isinstance(weights, PackedWeights) else weights
    return numbers.double().cpu()
