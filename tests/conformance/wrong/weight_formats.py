"""Wrong weight formats: each makes one mistake that the right one here does not make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tokenmill.backends.weights.config.fields import Fields
from tokenmill.backends.weights.formats.grouped_ints import GroupedInts
from tokenmill.backends.weights.packed import PackedWeights
from tokenmill.backends.weights.quantization.method import Method, Parts
from tokenmill.backends.weights.quantization.sample import QuantizedSample
from tokenmill.testing.conformance.computing import weight_format as suite

from . import fails


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


class Raises(Reader):
    def __call__(self, settings: Fields) -> Method:
        if not settings.keys():
            raise KeyError("bits")
        return METHOD

    def write_sample(self, weights: torch.Tensor) -> QuantizedSample:
        return replace(super().write_sample(weights), settings={"bits": 8})


@fails(suite.check_settings_are_accepted_or_refused, raises=KeyError)
def raises_another_exception() -> Reader:
    return Raises()


class AssertsItsSettings(Reader):
    def __call__(self, settings: Fields) -> Method:
        assert settings.get("bits") in (None, 8)
        return METHOD

    def write_sample(self, weights: torch.Tensor) -> QuantizedSample:
        return replace(super().write_sample(weights), settings={"bits": 8})


@fails(suite.check_absurd_settings_are_accepted_or_refused)
def asserts_its_settings() -> Reader:
    return AssertsItsSettings()


@fails(suite.check_one_tensor_marks_a_matrix)
def marks_a_matrix_twice() -> Reader:
    return Reader(markers=(".own", ".own_scale"))


@fails(suite.check_a_matrix_has_the_numbers_of_the_sample)
def reads_other_numbers() -> Reader:
    return Reader(restore=lambda parts, weights: weights.dequantize().flip(1))


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


@fails(suite.check_parts_and_stacks_have_the_numbers_of_the_whole)
def cuts_from_the_start() -> Reader:
    return reading(CutsFromTheStart)


@fails(suite.check_parts_and_stacks_have_the_numbers_of_the_whole)
def stacks_backwards() -> Reader:
    return reading(StacksBackwards)


@fails(suite.check_equal_formats_are_equal)
def is_never_equal() -> Reader:
    return reading(IsNeverEqual)


@fails(suite.check_damaged_tensors_are_refused)
def fails_without_a_part() -> Reader:
    return Reader(
        read=lambda parts: read(Parts({".own_scale": parts.tensors[".own_scale"], **parts.tensors}))
    )


@fails(suite.check_a_directory_has_the_matrix)
def names_matrices_its_own_way() -> Reader:
    return Reader(markers=("own",))
