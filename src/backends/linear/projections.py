"""Matrix products of a decoder, and who computes them: torch here, native kernels elsewhere.

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
"""A matrix [out, in]."""

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class Projection(Protocol):
    """A function of [tokens, in] to [tokens, out], with its weights."""

    @property
    def num_parameters(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """Memory that the weights take."""
        ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Projections(Protocol):
    """Makes the projections of one decoder."""

    def keeps(self, kind: GGMLQuantizationType) -> bool:
        """Whether weights of this kind are computed with as they are."""
        ...

    def linear(self, weights: Weights, bias: torch.Tensor | None) -> Projection:
        """x W^T + b."""
        ...

    def gate_up(self, weights: Weights, bias: torch.Tensor | None) -> Projection:
        """activation(gate) * up, with the rows of gate above those of up."""
        ...

    def head(self, weights: Weights) -> Projection:
        """x W^T in float32."""
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
    """activation(gate) * up of one product that gives both."""

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
    """A product whose result is wanted in float32."""

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
    """torch's own products, of float weights."""

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
