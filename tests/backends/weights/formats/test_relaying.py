"""Integers with scales in GGUF's blocks: the same numbers, or none."""

from __future__ import annotations

import pytest
import torch

from tokenmill.backends.weights.formats.relaying import relaid_format, relay
from tokenmill.backends.weights.packed import PackedWeights

from .test_formats import FORMATS, Make, integers

RELAID: dict[str, tuple[Make, str]] = {
    "int4": (integers(4, 64), "Q4_0"),
    "int4 with zero points": (integers(4, 32, has_zeros=True), "Q5_0"),
    "int4, one group per row": (integers(4, None, has_zeros=True), "Q5_0"),
    "int8": (integers(8, 128, dtype=torch.bfloat16), "Q8_0"),
}


@pytest.mark.parametrize("case", RELAID)
def test_a_relaid_matrix_has_the_same_numbers(case: str) -> None:
    make, kind = RELAID[case]
    weights = make(5, 512, 7)
    relaid = relay(weights)
    assert relaid is not None
    assert relaid.format == relaid_format(weights.format)
    assert relaid.format.name == kind
    assert torch.equal(relaid.dequantize(), weights.dequantize())


def test_scales_that_float16_lacks_are_part_of_the_format() -> None:
    """So the loader knows that it dequantizes such a matrix, and logs it."""
    wide, narrow = (integers(4, 32, dtype=dtype) for dtype in (torch.float32, torch.float16))
    assert wide(3, 64, 1).format != narrow(3, 64, 1).format
    assert relaid_format(wide(3, 64, 1).format) == wide(3, 64, 1).format
    ordered = integers(4, 32, is_ordered=True, dtype=torch.float32)(3, 64, 1)
    assert ordered.narrow(1, 2, 30).format != integers(4, 32, is_ordered=True)(3, 64, 1).format
    assert ordered.narrow(1, 2, 30).format.has_wide_scales  # type: ignore[attr-defined]


KEPT = ["int4, ordered", "int8, ordered", "int8", "fp8, blocks", "Q4_K"]


@pytest.mark.parametrize("name", KEPT)
def test_formats_without_a_counterpart_stay(name: str) -> None:
    weights = FORMATS[name](5, 512, 7)
    assert relaid_format(weights.format) == weights.format
    assert relay(weights) is weights


def changed(weights: PackedWeights, plane: int, value: float) -> PackedWeights:
    """The same matrix with another number in the first place of a plane."""
    planes = [one.clone() for one in weights.planes]
    planes[plane][0, 0] = value
    return PackedWeights(weights.format, weights.shape, tuple(planes))


def test_a_matrix_whose_numbers_do_not_fit_is_not_relaid() -> None:
    assert relay(integers(4, None)(3, 40, 1)) is None  # rows of one block and a quarter
    weights = integers(4, 32, has_zeros=True, dtype=torch.bfloat16)(3, 64, 1)
    assert relay(weights) is not None
    assert relay(changed(weights, 1, 1e6)) is None  # infinite in float16
    assert relay(changed(weights, 2, 17)) is None  # an integer below -16
    assert relay(changed(weights, 2, 16)) is not None
