"""Native reading of logits: what torch finds, for every instruction set."""

from __future__ import annotations

import pytest
import torch

from tokenmill.backends.cpu.native.library import Library
from tokenmill.backends.cpu.sampling import NativeSampling

SIZES = (1, 5, 17, 1024, 1030, 3000, 49152)


@pytest.mark.parametrize("size", SIZES)
def test_the_best_of_each_row_is_torchs(library: Library, instruction_set: str, size: int) -> None:
    logits = torch.randn(9, size, generator=torch.Generator().manual_seed(size))
    reading = NativeSampling(library).read_logits(logits)
    assert reading.best_r.tolist() == logits.argmax(dim=1).tolist()
    assert reading.is_finite_r.all()


def test_every_place_can_be_the_best(library: Library, instruction_set: str) -> None:
    logits = torch.eye(2500)
    assert NativeSampling(library).read_logits(logits).best_r.tolist() == list(range(2500))


def test_of_equals_the_lowest_is_taken(library: Library, instruction_set: str) -> None:
    logits = torch.zeros(3, 5000)
    logits[1, [4000, 2049, 2051]] = 2.0
    logits[2] = -torch.inf
    assert NativeSampling(library).read_logits(logits).best_r.tolist() == [0, 2049, 0]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 15, 1023, 1024, 2999])
def test_one_number_that_is_none_is_found(
    library: Library, instruction_set: str, value: float, place: int
) -> None:
    logits = torch.randn(4, 3000)
    logits[2, place] = value
    reading = NativeSampling(library).read_logits(logits)
    assert reading.is_finite_r.tolist() == [True, True, False, True]
    assert 0 <= reading.best_r[2] < 3000
