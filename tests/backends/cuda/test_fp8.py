"""The kernels' own arithmetic of 8-bit floating point, against torch's."""

from __future__ import annotations

import pytest
import torch

from .emulation import EmulatedOperators

KINDS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

by_kind = pytest.mark.parametrize("kind", KINDS)


def all_codes() -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8)


def finite_numbers(kind: str) -> torch.Tensor:
    """All that there are from 0 on, ascending."""
    numbers = all_codes()[:128].view(KINDS[kind]).float()
    return numbers[numbers.isfinite()]


def rounded(kind: str, floats: torch.Tensor, operators: EmulatedOperators) -> torch.Tensor:
    """And expanded again, by torch."""
    return operators.round_to(kind, floats).view(KINDS[kind]).float()


@by_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_code_is_the_number_that_torch_says(
    kind: str, dtype: torch.dtype, operators: EmulatedOperators
) -> None:
    expected = all_codes().view(KINDS[kind]).float()
    for actual in operators.expand(kind, all_codes(), dtype):
        torch.testing.assert_close(actual.float(), expected, rtol=0, atol=0, equal_nan=True)
        numbers = ~expected.isnan()
        assert torch.equal(actual[numbers].signbit(), expected[numbers].signbit())


@by_kind
def test_every_number_is_rounded_to_itself(kind: str, operators: EmulatedOperators) -> None:
    numbers = finite_numbers(kind)
    for signed in (numbers, -numbers):
        codes = operators.round_to(kind, signed)
        assert torch.equal(codes, signed.to(KINDS[kind]).view(torch.uint8))


@by_kind
def test_ties_go_to_even_and_all_else_to_the_nearest(
    kind: str, operators: EmulatedOperators
) -> None:
    """Around the middle of all neighbours, down to the smallest."""
    numbers = finite_numbers(kind)
    below, above = numbers[:-1], numbers[1:]
    middle = (below + above) / 2
    even = torch.where(torch.arange(len(below)) % 2 == 0, below, above)
    for sign in (1, -1):
        for floats, expected in (
            (middle, even),
            (middle.nextafter(below), below),
            (middle.nextafter(above), above),
        ):
            assert torch.equal(rounded(kind, sign * floats, operators), sign * expected)
            assert torch.equal(expected, floats.to(KINDS[kind]).float())


@by_kind
def test_what_is_too_large_becomes_the_largest(kind: str, operators: EmulatedOperators) -> None:
    largest = torch.finfo(KINDS[kind]).max
    floats = torch.tensor([largest * 1.01, largest * 1.1, 2 * largest, 1e30, torch.inf])
    assert torch.equal(rounded(kind, floats, operators), torch.full((5,), largest))
    assert torch.equal(rounded(kind, -floats, operators), torch.full((5,), -largest))


@by_kind
def test_nan_stays_nan(kind: str, operators: EmulatedOperators) -> None:
    floats = torch.tensor([torch.nan, -torch.nan])
    assert rounded(kind, floats, operators).isnan().all()


@by_kind
def test_random_numbers_of_any_size_are_rounded_as_by_torch(
    kind: str, operators: EmulatedOperators
) -> None:
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-30, 30, (20_000,), generator=generator)
    floats = torch.randn(20_000, generator=generator) * 2.0**exponents
    largest = torch.finfo(KINDS[kind]).max
    expected = floats.clamp(-largest, largest).to(KINDS[kind]).view(torch.uint8)
    assert torch.equal(operators.round_to(kind, floats), expected)
