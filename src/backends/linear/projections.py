"""The interface of a decoder's matrix products, and its implementation by torch.

Shape suffixes: t tokens, i intermediate size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType

from ..weights.quantized import QuantizedMatrix

Weights = torch.Tensor | QuantizedMatrix
"""A matrix [out, in], in floating point or quantized."""

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class Projection(Protocol):
    """A function from [tokens, in] to [tokens, out], with its weights."""

    @property
    def num_parameters(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """Memory of the weights, in bytes."""
        ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Projections(Protocol):
    """Makes the projections of one decoder."""

    def keeps(self, kind: GGMLQuantizationType) -> bool:
        """Whether the products use weights of this kind without dequantizing them first."""
        ...

    def linear(self, weights: Weights, bias: torch.Tensor | None) -> Projection:
        """Make x W^T + b."""
        ...

    def gate_up(self, weights: Weights, bias: torch.Tensor | None) -> Projection:
        """Make activation(gate) * up; the weights have the rows of gate above those of up."""
        ...

    def head(self, weights: Weights) -> Projection:
        """Make x W^T with a result in float32."""
        ...


@dataclass(frozen=True, slots=True)
class Linear:
    """x W^T + b, with the weight as [out, in]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    @property
    def num_parameters(self) -> int:
        return self.weight.numel() + (0 if self.bias is None else self.bias.numel())

    @property
    def num_bytes(self) -> int:
        return self.num_parameters * self.weight.itemsize


@dataclass(frozen=True, slots=True)
class GateUp:
    """activation(gate) * up, where one product computes gate and up."""

    both: Projection
    activation: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate_ti, up_ti = self.both(x).chunk(2, dim=-1)
        return self.activation(gate_ti) * up_ti

    @property
    def num_parameters(self) -> int:
        return self.both.num_parameters

    @property
    def num_bytes(self) -> int:
        return self.both.num_bytes


@dataclass(frozen=True, slots=True)
class Head:
    """A product whose result is converted to float32."""

    linear: Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).float()

    @property
    def num_parameters(self) -> int:
        return self.linear.num_parameters

    @property
    def num_bytes(self) -> int:
        return self.linear.num_bytes


class TorchProjections:
    """Products of floating point weights by torch."""

    def __init__(self, activation: str) -> None:
        self._activation = ACTIVATIONS[activation]

    def keeps(self, kind: GGMLQuantizationType) -> bool:
        return False

    def linear(self, weights: Weights, bias: torch.Tensor | None) -> Linear:
        assert isinstance(weights, torch.Tensor), "quantized weights are not kept"
        return Linear(weights, bias)

    def gate_up(self, weights: Weights, bias: torch.Tensor | None) -> GateUp:
        return GateUp(self.linear(weights, bias), self._activation)

    def head(self, weights: Weights) -> Head:
        return Head(self.linear(weights, None))
