"""Rounding to 8 bits in torch operations."""

from __future__ import annotations

import pytest
import torch

from tokenmill.backends.attention.fp8 import FP8_DTYPES, movable, quantize


@pytest.mark.parametrize("kind", FP8_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_is_too_large_becomes_the_largest_and_nan_stays(
    dtype: torch.dtype, kind: torch.dtype
) -> None:
    largest = torch.finfo(kind).max
    given = torch.tensor([largest, largest * 1.1, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    rounded = quantize(given, kind)
    assert rounded.dtype is kind
    assert rounded.float()[:4].tolist() == [largest, largest, largest, -largest]
    assert rounded.float()[4].isnan()


@pytest.mark.parametrize("kind", FP8_DTYPES, ids=str)
def test_every_number_of_the_type_is_kept(kind: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(kind)
    numbers = codes.float()
    finite = numbers.isfinite()
    assert torch.equal(movable(quantize(numbers, kind))[finite], movable(codes)[finite])


def test_only_8_bits_are_moved_as_integers() -> None:
    assert movable(torch.zeros(2)).dtype is torch.float32
    assert movable(torch.zeros(2, dtype=torch.float8_e5m2)).dtype is torch.uint8
