"""Matrices in the packed format of their file, and the interface of such formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from ...core.errors import ConfigError


class WeightFormat(Protocol):
    """A way to store a matrix in fewer bits. Formats are compared with `==` and hashable.

    A format divides each row into blocks of `block_size` inputs. Rows and blocks are independent,
    so a matrix can be cut and stacked without a change of its numbers.
    """

    @property
    def name(self) -> str:
        """The name that people know it by, for example "Q4_K" or "int4"."""
        ...

    @property
    def block_size(self) -> int:
        """Number of inputs after which a row may be cut."""
        ...

    def check(self, weights: PackedWeights) -> None:
        """Raise ConfigError if the planes do not have the shapes and types of the format."""
        ...

    def dequantize(self, weights: PackedWeights) -> torch.Tensor:
        """Return float32 [out, in]: the exact numbers, rounded once to float32."""
        ...

    def narrow(self, weights: PackedWeights, dim: int, start: int, length: int) -> PackedWeights:
        """Return a part along the outputs (dim 0) or the inputs (dim 1), like `Tensor.narrow`.

        `start` and `length` are multiples of `block_size` if `dim` is 1.
        """
        ...

    def stack(self, parts: Sequence[PackedWeights]) -> PackedWeights:
        """Return matrices of this format and equal numbers of inputs as one, along the outputs."""
        ...


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A description of a tensor in a file, which needs only the file's header."""

    shape: tuple[int, ...]
    format: torch.dtype | WeightFormat
    num_bytes: int
    """Size in the file."""

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    def resized(self, shape: Sequence[int]) -> StoredTensor:
        """Describe a part of it, with the same number of dimensions."""
        part = math.prod(shape) / self.num_elements
        return replace(self, shape=tuple(shape), num_bytes=int(self.num_bytes * part))


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """A matrix [out, in] in a packed format. Raises ConfigError if its planes do not fit."""

    format: WeightFormat
    shape: tuple[int, int]
    """[out, in], in numbers."""
    planes: tuple[torch.Tensor, ...]
    """The tensors that the format documents, on the CPU. They may be views of a mapped file."""

    def __post_init__(self) -> None:
        self.format.check(self)

    @property
    def num_bytes(self) -> int:
        return sum(plane.nbytes for plane in self.planes)

    def dequantize(self) -> torch.Tensor:
        """Return float32 [out, in]; see WeightFormat."""
        return self.format.dequantize(self)

    def narrow(self, dim: int, start: int, length: int) -> PackedWeights:
        """Return a part, like `Tensor.narrow`. Raises ConfigError for a cut inside a block."""
        assert dim in (0, 1) and start >= 0 and start + length <= self.shape[dim]
        block = self.format.block_size
        if dim == 1 and (start % block or length % block):
            raise ConfigError(
                f"weights of format {self.format.name} can be cut only at multiples of {block} "
                f"inputs, not at {start} and {start + length}"
            )
        return self.format.narrow(self, dim, start, length)


Weights = torch.Tensor | PackedWeights
"""A matrix [out, in], in floating point or packed."""


def stack(parts: Sequence[PackedWeights]) -> PackedWeights:
    """Return matrices of one format as one, along the outputs. The format must be equal in all."""
    assert len({part.format for part in parts}) == 1
    assert len({part.shape[1] for part in parts}) == 1
    return parts[0] if len(parts) == 1 else parts[0].format.stack(parts)
