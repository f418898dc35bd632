"""Reads the tensors of a vision tower, and converts them for its computation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...core.errors import ConfigError
from ..linear.base import LinearBackend, LinearSpec, Projection
from ..linear.choice import packed_bytes
from .source import TowerFiles

_FLOAT32 = 4
"""Bytes per value of a bias in a native backend."""


class WeightReader:
    """Reads tensors, and makes matrix products of them."""

    def __init__(
        self,
        files: TowerFiles,
        dtype: torch.dtype,
        device: torch.device,
        linear: LinearBackend,
    ) -> None:
        self._files, self._dtype, self._device, self._linear = files, dtype, device, linear

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Read a tensor. If it has more dimensions, as in a convolution, flatten it to `shape`.
        Raises ConfigError when the tensor is missing or has the wrong shape."""
        stored = self._files.stored(name)
        if len(stored.shape) < len(shape) or math.prod(shape) != math.prod(stored.shape):
            raise ConfigError(
                f"{name} in {self._files.path} has shape {list(stored.shape)}, expected "
                f"{list(shape)}"
            )
        found = self._files.tensor(name).reshape(shape)
        return found.to(device=self._device, dtype=self._dtype, copy=True)

    def linear(
        self, names: Sequence[str], out_size: int, in_size: int, *, has_bias: bool
    ) -> Projection:
        """The products of one input with several matrices, joined into one. Raises ConfigError; see
        `take`."""
        weights = [self.take(f"{name}.weight", (out_size, in_size)) for name in names]
        if not has_bias:
            return self._linear.linear(weights, None)
        biases = [self.take(f"{name}.bias", (out_size,)) for name in names]
        return self._linear.linear(weights, torch.cat(biases))

    def gate_up(
        self, gate: str, up: str, out_size: int, in_size: int, activation: str
    ) -> Projection:
        """See LinearBackend.gate_up; without a bias. Raises ConfigError; see `take`."""
        first, second = (self.take(name, (out_size, in_size)) for name in (gate, up))
        return self._linear.gate_up(first, second, None, activation)

    def product(self, weight: torch.Tensor) -> Projection:
        """The product with a matrix, without a bias."""
        return self._linear.linear([weight], None)


def product_bytes(
    linear: type[LinearBackend], spec: LinearSpec, rows: int, inputs: int, *, has_bias: bool
) -> int:
    """The memory of the product with a matrix [rows, inputs], in bytes."""
    packed = packed_bytes(linear, spec, spec.dtype, rows, inputs)
    is_native = packed is not None  # such backends keep biases in float32
    size = rows * inputs * spec.dtype.itemsize if packed is None else packed
    return size + has_bias * rows * (_FLOAT32 if is_native else spec.dtype.itemsize)
