"""Matrix products by torch, in floating point: the reference for all other linear backends.

Shape suffixes: t tokens, v vocabulary, e hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..weights.packed import PackedWeights, WeightFormat, Weights
from .base import ACTIVATIONS, LinearCapabilities, LinearSpec, Projection


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
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.activation(gate) * up

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


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """An embedding in floating point; see Embedding."""

    weight_ve: torch.Tensor

    def __call__(self, token_ids_t: torch.Tensor) -> torch.Tensor:
        return F.embedding(token_ids_t, self.weight_ve)

    @property
    def dtype(self) -> torch.dtype:
        return self.weight_ve.dtype

    @property
    def device(self) -> torch.device:
        return self.weight_ve.device

    @property
    def num_parameters(self) -> int:
        return self.weight_ve.numel()

    @property
    def num_bytes(self) -> int:
        return self.weight_ve.nbytes

    def shared(self, share: Callable[[torch.Tensor], torch.Tensor]) -> EmbeddingTable:
        return EmbeddingTable(share(self.weight_ve))


class TorchLinear:
    """Plain torch operations on any device. Keeps no packed weights. See LinearBackend."""

    name = "torch"
    capabilities = LinearCapabilities()

    def __init__(self, spec: LinearSpec) -> None:
        """Return no reasons: it serves every spec."""

    @classmethod
    def reasons_against(cls, spec: LinearSpec) -> list[str]:
        return []

    @classmethod
    def keeps(cls, spec: LinearSpec, format: WeightFormat) -> bool:
        return False

    def linear(self, segments: Sequence[Weights], bias: torch.Tensor | None) -> Linear:
        tensors = [_dense(segment) for segment in segments]
        return Linear(tensors[0] if len(tensors) == 1 else torch.cat(tensors), bias)

    def gate_up(
        self, gate: Weights, up: Weights, bias: torch.Tensor | None, activation: str
    ) -> GateUp:
        return GateUp(self.linear([gate, up], bias), ACTIVATIONS[activation])

    def head(self, weights: Weights) -> Head:
        return Head(Linear(_dense(weights)))


def _dense(weights: Weights) -> torch.Tensor:
    assert not isinstance(weights, PackedWeights), "the caller dequantizes packed weights"
    return weights
