"""Wrong linear backends: each makes one mistake that torch's does not make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tokenmill.backends.linear.base import LinearCapabilities, LinearSpec, Projection
from tokenmill.backends.linear.torch import EmbeddingTable, TorchLinear
from tokenmill.backends.weights.packed import PackedWeights, WeightFormat, Weights
from tokenmill.testing.conformance.linear import suite

from . import fails


class Changed:
    """A projection whose result or call differs from another one's."""

    def __init__(self, inner: Projection, call: Callable[[Projection, torch.Tensor], Any]) -> None:
        self._inner, self._call = inner, call
        self.num_uncounted = 0

    @property
    def num_parameters(self) -> int:
        return self._inner.num_parameters - self.num_uncounted

    @property
    def num_bytes(self) -> int:
        return self._inner.num_bytes

    def __call__(self, x: torch.Tensor) -> Any:
        return self._call(self._inner, x)


class Keeping(TorchLinear):
    """Keeps Q8_0, and dequantizes it itself."""

    def __init__(self, spec: LinearSpec) -> None:
        super().__init__(spec)
        self._right = TorchLinear(spec)

    @classmethod
    def keeps(cls, spec: LinearSpec, format: WeightFormat) -> bool:
        return format.name == "Q8_0"

    def linear(self, segments: Sequence[Weights], bias: torch.Tensor | None) -> Any:
        return super().linear([_dense(one) for one in segments], bias)

    def gate_up(
        self, gate: Weights, up: Weights, bias: torch.Tensor | None, activation: str
    ) -> Any:
        return self._right.gate_up(_dense(gate), _dense(up), bias, activation)

    def head(self, weights: Weights) -> Any:
        return super().head(_dense(weights))


def _dense(weights: Weights) -> torch.Tensor:
    return weights.dequantize() if isinstance(weights, PackedWeights) else weights


@fails(suite.check_reasons_and_kept_formats_are_told_for_any_specification)
class RaisesForHalfPrecision(TorchLinear):
    @classmethod
    def reasons_against(cls, spec: LinearSpec) -> list[str]:
        assert spec.dtype is not torch.float16
        return []


@fails(suite.check_kept_weights_are_multiplied_as_they_are)
class LooksUpOtherNumbers(Keeping):
    capabilities = LinearCapabilities(looks_up=True)

    def embedding(self, weights: Any) -> EmbeddingTable:
        is_packed = isinstance(weights, PackedWeights)
        rows = _dense(weights) if is_packed else weights.linear.weight
        return EmbeddingTable(rows * (1.01 if is_packed else 1))


@fails(suite.check_products_equal_the_reference)
class ForgetsTheBias(Keeping):
    def linear(self, segments: Sequence[Weights], bias: torch.Tensor | None) -> Any:
        made = super().linear(segments, bias)
        return Changed(made, lambda inner, x: inner(x) - (0 if bias is None else bias))


@fails(suite.check_products_equal_the_reference)
class CountsNoBias(Keeping):
    def linear(self, segments: Sequence[Weights], bias: torch.Tensor | None) -> Any:
        made = Changed(super().linear(segments, bias), lambda inner, x: inner(x))
        made.num_uncounted = 0 if bias is None else bias.numel()
        return made


@fails(suite.check_kept_weights_are_multiplied_as_they_are)
class EnlargesPackedWeights(Keeping):
    def linear(self, segments: Sequence[Weights], bias: torch.Tensor | None) -> Any:
        wrong = len(segments) == 1 and isinstance(segments[0], PackedWeights)
        made = super().linear(segments, bias)
        return Changed(made, lambda inner, x: inner(x) * (1.1 if wrong else 1.0))


@fails(suite.check_segments_are_one_matrix_in_their_order)
class SortsSegments(Keeping):
    def linear(self, segments: Sequence[Weights], bias: torch.Tensor | None) -> Any:
        return super().linear(sorted(segments, key=lambda one: -one.shape[0]), bias)


@fails(suite.check_gate_and_up_equal_the_reference)
class SwapsGateAndUp(Keeping):
    def gate_up(
        self, gate: Weights, up: Weights, bias: torch.Tensor | None, activation: str
    ) -> Any:
        return super().gate_up(up, gate, bias, activation)


@fails(suite.check_a_head_returns_float32)
class RoundsLogits(Keeping):
    def head(self, weights: Weights) -> Any:
        return Changed(super().head(weights), lambda inner, x: inner(x).bfloat16())


@fails(suite.check_rows_do_not_change_each_other)
class SpreadsNaN(Keeping):
    def linear(self, segments: Sequence[Weights], bias: torch.Tensor | None) -> Any:
        made = super().linear(segments, bias)
        return Changed(made, lambda inner, x: inner(x) + x.mean() * 0)


@fails(suite.check_inputs_and_weights_stay_as_they_are)
class ScalesItsInputs(Keeping):
    def linear(self, segments: Sequence[Weights], bias: torch.Tensor | None) -> Any:
        def call(inner: Projection, x: torch.Tensor) -> torch.Tensor:
            result = inner(x)
            x.mul_(2)
            return result

        return Changed(super().linear(segments, bias), call)
