"""The block formats of GGUF files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from ....core.errors import ConfigError
from ..packed import PackedWeights
from .planes import check_planes

_LONG_ROW = 1 << 12
"""Bytes: gguf dequantizes 16 rows at a time, and each time has an overhead of some 100 µs."""


@dataclass(frozen=True, slots=True)
class GGUFBlocks:
    """A WeightFormat: one of GGUF's quantization types.

    The only plane is uint8 [out, bytes of a row]. A row is a sequence of blocks, whose layout is
    described in https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
    """

    kind: GGMLQuantizationType

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def block_size(self) -> int:
        return int(GGML_QUANT_SIZES[self.kind][0])

    def row_bytes(self, num_inputs: int) -> int:
        """Return the size of a row. Raises ConfigError unless it consists of whole blocks."""
        block_size, block_bytes = GGML_QUANT_SIZES[self.kind]
        if num_inputs % block_size:
            raise ConfigError(
                f"rows of {self.name} have a multiple of {block_size} inputs, not {num_inputs}"
            )
        return int(num_inputs // block_size * block_bytes)

    def check(self, weights: PackedWeights) -> None:
        shape = (weights.shape[0], self.row_bytes(weights.shape[1]))
        check_planes(weights, [("blocks", (torch.uint8,), shape)])

    def dequantize(self, weights: PackedWeights) -> torch.Tensor:
        """See WeightFormat. Raises ConfigError if the gguf package cannot."""
        blocks = weights.planes[0].contiguous().numpy()
        num_rows = weights.shape[0]
        while num_rows % 2 == 0 and blocks.size < _LONG_ROW * num_rows:
            num_rows //= 2
        try:
            with np.errstate(all="ignore"):  # scales that are not finite give NaN
                values = dequantize(blocks.reshape(num_rows, -1), self.kind)
        except NotImplementedError as error:
            raise ConfigError(f"the tensor type {self.name} is not supported") from error
        values = np.ascontiguousarray(values, dtype=np.float32).reshape(weights.shape)
        return torch.from_numpy(values if values.flags.writeable else values.copy())

    def narrow(self, weights: PackedWeights, dim: int, start: int, length: int) -> PackedWeights:
        (blocks,) = weights.planes
        if dim == 0:
            return PackedWeights(
                self, (length, weights.shape[1]), (blocks[start : start + length],)
            )
        begin, end = self.row_bytes(start), self.row_bytes(start + length)
        return PackedWeights(self, (weights.shape[0], length), (blocks[:, begin:end],))

    def stack(self, parts: Sequence[PackedWeights]) -> PackedWeights:
        """See WeightFormat. numpy copies, because torch's threads would then spin on the cores
        that native kernels pack with."""
        blocks = torch.from_numpy(np.concatenate([part.planes[0].numpy() for part in parts]))
        return PackedWeights(self, (blocks.shape[0], parts[0].shape[1]), (blocks,))


FLOAT16 = GGUFBlocks(GGMLQuantizationType.F16)
"""Numbers of 16 bits as blocks of one: matrices that stay in float16 where float32 is computed."""


def gguf_weights(kind: GGMLQuantizationType, blocks: torch.Tensor) -> PackedWeights:
    """Return rows of blocks, uint8 [out, bytes of a row], as a matrix.

    Raises ConfigError if the rows do not consist of whole blocks.
    """
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    num_inputs = blocks.shape[-1] // block_bytes * block_size
    return PackedWeights(GGUFBlocks(kind), (blocks.shape[0], num_inputs), (blocks,))
