"""Wrong weight formats: each makes one mistake that the right one here does not make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tokenmill.backends.weights.config.fields import Fields
from tokenmill.backends.weights.formats.grouped_ints import GroupedInts
from tokenmill.backends.weights.packed import PackedWeights
from tokenmill.backends.weights.quantization.method import Method, Parts
from tokenmill.backends.weights.quantization.sample import QuantizedSample
from tokenmill.testing import WeightFormatConformance


def read(parts: Parts, format: Any = GroupedInts(bits=8, group_size=None)) -> PackedWeights:  # noqa: B008
    weights = parts.need(".own", torch.uint8)
    scales = parts.need(".own_scale", torch.float16)
    return PackedWeights(format, (weights.shape[0], weights.shape[1]), (weights, scales))


METHOD = Method(name="own", markers=(".own",), endings=(".own", ".own_scale"), read=read)


class Reader:
    """The right one: uint8 with a scale per output."""

    def __init__(self, **changes: Any) -> None:
        self._changes = changes

    def __call__(self, settings: Fields) -> Method:
        return replace(METHOD, **self._changes)

    def write_sample(self, weights: torch.Tensor) -> QuantizedSample:
        scales = (weights.abs().amax(1, keepdim=True) / 127).half()
        integers = (weights / scales.float()).round().clamp(-127, 127)
        tensors = {".own": (integers + 128).to(torch.uint8), ".own_scale": scales}
        return QuantizedSample(settings={}, tensors=tensors, matrix=integers * scales.float())


class Right(WeightFormatConformance):
    reader: Any = Reader()

    @pytest.fixture
    def weight_format(self) -> Any:
        return self.reader


class Raises(Reader):
    def __call__(self, settings: Fields) -> Method:
        if not settings.keys():
            raise KeyError("bits")
        return METHOD

    def write_sample(self, weights: torch.Tensor) -> QuantizedSample:
        return replace(super().write_sample(weights), settings={"bits": 8})


class TestRaisesAnotherException(Right):
    fails = "test_settings_are_accepted_or_refused"
    reader = Raises()


class Absurd(Reader):
    def __call__(self, settings: Fields) -> Method:
        assert settings.get("bits") in (None, 8)
        return METHOD

    def write_sample(self, weights: torch.Tensor) -> QuantizedSample:
        return replace(super().write_sample(weights), settings={"bits": 8})


class TestAssertsItsSettings(Right):
    fails = "test_absurd_settings_are_accepted_or_refused"
    reader = Absurd()


class TestMarksAMatrixTwice(Right):
    fails = "test_one_tensor_marks_a_matrix"
    reader = Reader(markers=(".own", ".own_scale"))


class TestReadsOtherNumbers(Right):
    fails = "test_a_matrix_has_the_numbers_of_the_sample"
    reader = Reader(restore=lambda parts, weights: weights.dequantize().flip(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class CutsFromTheStart(GroupedInts):
    def narrow(self, weights: PackedWeights, dim: int, start: int, length: int) -> PackedWeights:
        return GroupedInts.narrow(self, weights, dim, start if dim == 0 else 0, length)


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksBackwards(GroupedInts):
    def stack(self, parts: Sequence[PackedWeights]) -> PackedWeights:
        return GroupedInts.stack(self, parts[::-1])


@dataclass(eq=False, frozen=True, slots=True, kw_only=True)
class IsNeverEqual(GroupedInts):
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def reading(make: Callable[..., Any]) -> Reader:
    return Reader(read=lambda parts: read(parts, make(bits=8, group_size=None)))


class TestCutsFromTheStart(Right):
    fails = "test_parts_and_stacks_have_the_numbers_of_the_whole"
    reader = reading(CutsFromTheStart)


class TestStacksBackwards(Right):
    fails = "test_parts_and_stacks_have_the_numbers_of_the_whole"
    reader = reading(StacksBackwards)


class TestIsNeverEqual(Right):
    fails = "test_equal_formats_are_equal"
    reader = reading(IsNeverEqual)


class TestFailsWithoutAPart(Right):
    fails = "test_damaged_tensors_are_refused"
    reader = Reader(
        read=lambda parts: read(Parts({".own_scale": parts.tensors[".own_scale"], **parts.tensors}))
    )


class TestNamesMatricesItsOwnWay(Right):
    fails = "test_a_directory_has_the_matrix"
    reader = Reader(markers=("own",))
