"""The most likely token, and the inverse of the cumulative distribution, at its edges."""

from __future__ import annotations

import math

import pytest
import torch

from tokenmill.backends.sampling.drawing import draw, draw_filtered, keep_filtered, most_likely
from tokenmill.backends.sampling.filters import Filters
from tokenmill.backends.sampling.noise import uniform

SIZES = [1, 2, 97, 192, 512, 1000, 1024, 5120]
LEAST, MOST = 2.0**-53, 1 - 2.0**-53


def random_probs(num_rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    """Rows that sum to 1, a third of them zeros."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num_rows, vocab_size, generator=generator)
    logits[torch.rand(num_rows, vocab_size, generator=generator) < 1 / 3] = -torch.inf
    logits[:, vocab_size // 2] = 0.0
    return logits.softmax(dim=1)


def row_filters(top_k: int, top_p: float, num_rows: int) -> Filters:
    return Filters(
        min_p_r1=torch.zeros(num_rows, 1),
        top_k_r1=torch.full((num_rows, 1), top_k),
        top_p_r1=torch.full((num_rows, 1), top_p, dtype=torch.float64),
    )


@pytest.mark.parametrize("size", SIZES)
def test_of_equal_logits_the_lowest_id_wins(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = torch.randint(-5, 3, (200, size), generator=generator).float()
    found = most_likely(logits)
    for row, token_id in zip(logits.tolist(), found.tolist(), strict=True):
        assert token_id == row.index(max(row))


@pytest.mark.parametrize("size", SIZES)
def test_a_draw_inverts_the_cumulative_distribution(size: int) -> None:
    probs = random_probs(300, size)
    numbers = uniform(torch.arange(300), torch.arange(300))
    cumulative = probs.double().cumsum(dim=1)
    target = numbers.unsqueeze(1) * cumulative[:, -1:]
    expected = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    assert draw(probs, numbers).tolist() == expected.tolist()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("number", [LEAST, 0.5, MOST])
def test_a_token_of_probability_0_is_never_drawn(size: int, number: float) -> None:
    """Not at the very ends either, where the first and the last tokens have none."""
    probs = random_probs(100, size)
    if size > 2:
        probs[:, : size // 3] = 0.0
        probs[:, -(size // 3) :] = 0.0
    numbers = torch.full((100,), number, dtype=torch.float64)
    drawn = [
        draw(probs, numbers),
        draw_filtered(probs / probs.sum(1, keepdim=True), numbers, row_filters(size, 0.9, 100)),
    ]
    for token_ids in drawn:
        assert (probs.gather(1, token_ids.unsqueeze(1)) > 0).all()


@pytest.mark.parametrize("number", [LEAST, 0.3, MOST])
def test_a_certain_token_is_drawn_whatever_the_number(number: float) -> None:
    probs = torch.eye(512)
    numbers = torch.full((512,), number, dtype=torch.float64)
    assert draw(probs, numbers).tolist() == list(range(512))
    assert draw_filtered(probs, numbers, row_filters(3, 0.5, 512)).tolist() == list(range(512))


def test_each_token_owns_its_part_of_the_unit_interval_from_its_lower_end_on() -> None:
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.25, 0.5, 0.0]])
    for number, token_id in ((LEAST, 1), (0.125, 1), (0.25, 3), (0.375, 3), (0.5, 4), (MOST, 4)):
        assert draw(probs, torch.tensor([number], dtype=torch.float64)).tolist() == [token_id]


def test_an_unlikely_token_behind_a_likely_one_keeps_its_part() -> None:
    """Its part is smaller than what float32 can tell apart there."""
    probs = torch.zeros(1, 768)
    probs[0, 0], probs[0, 300], probs[0, 600] = 0.7, 1e-9, 0.3
    cumulative = probs.double().cumsum(dim=1)
    number = (cumulative[0, 0] + 5e-10) / cumulative[0, -1]
    assert draw(probs, number.reshape(1)).tolist() == [300]


def test_a_rounding_at_the_end_of_a_block_does_not_lead_to_an_impossible_token() -> None:
    """A block's sum and its running sum differ in their last bits; here the number lies between."""
    probs = random_probs(2000, 512)
    probs[:, 255::256] = 0.0
    mass = probs.view(2000, 2, 256).sum(dim=2, dtype=torch.float64)
    total = mass.cumsum(dim=1)[:, 1]
    numbers = mass[:, 0] / total
    for _ in range(3):  # just below the first block's end, as far as it can be told
        numbers = torch.nextafter(numbers, torch.zeros_like(numbers))
        chosen = probs.gather(1, draw(probs, numbers).unsqueeze(1))
        assert (chosen > 0).all()


def test_a_draw_stays_within_the_filters_for_flat_and_steep_rows() -> None:
    """Steep rows are decided among the likeliest tokens, flat ones through the histogram."""
    scale = torch.linspace(0.01, 6, 64).unsqueeze(1)
    generator = torch.Generator().manual_seed(1)
    probs = (scale * torch.randn(64, 2048, generator=generator)).softmax(dim=1)
    numbers = uniform(torch.arange(64), torch.zeros(64, dtype=torch.int64))
    for top_k, top_p in ((1, math.inf), (50, 0.9), (2048, 0.9), (700, 0.5), (2048, 0.001)):
        token_ids = draw_filtered(probs, numbers, row_filters(top_k, top_p, 64))
        chosen = probs.gather(1, token_ids.unsqueeze(1))
        assert ((probs > chosen).sum(dim=1) < top_k).all()
        above = torch.where(probs > chosen, probs, 0.0).double().sum(dim=1)
        assert (above < top_p + 1e-6).all()


def test_rows_draw_as_they_would_alone() -> None:
    generator = torch.Generator().manual_seed(2)
    scale = torch.linspace(6, 0.1, 40).unsqueeze(1)  # the flat rows come last
    probs = (scale * torch.randn(40, 1024, generator=generator)).softmax(dim=1)
    numbers = uniform(torch.arange(40), torch.zeros(40, dtype=torch.int64))
    together = draw(probs, numbers).tolist()
    filtered = draw_filtered(probs, numbers, row_filters(1024, 0.9, 40)).tolist()
    for row in range(40):
        part = slice(row, row + 1)
        assert draw(probs[part], numbers[part]).tolist() == together[part]
        alone = draw_filtered(probs[part], numbers[part], row_filters(1024, 0.9, 1))
        assert alone.tolist() == filtered[part]


def test_rows_of_nan_draw_some_token_and_disturb_no_other() -> None:
    probs = random_probs(9, 512)
    numbers = uniform(torch.arange(9), torch.arange(9))
    spoilt = probs.clone()
    spoilt[4] = torch.nan
    filters = row_filters(512, 0.99, 9)
    for function in (draw, lambda p, u: draw_filtered(p, u, filters)):
        expected, found = function(probs, numbers).tolist(), function(spoilt, numbers).tolist()
        assert 0 <= found.pop(4) < 512
        expected.pop(4)
        assert found == expected
    assert 0 <= most_likely(spoilt)[4] < 512


def test_what_is_kept_is_what_a_draw_may_find() -> None:
    """Of steep rows and flat ones: the smallest and the largest numbers draw from both ends."""
    scale = torch.linspace(6, 0.01, 40).unsqueeze(1)
    generator = torch.Generator().manual_seed(3)
    probs = (scale * torch.randn(40, 1024, generator=generator)).softmax(dim=1)
    for top_k, top_p in ((1, math.inf), (50, 0.9), (1024, 0.9), (700, 0.5)):
        filters = row_filters(top_k, top_p, 40)
        kept = keep_filtered(probs, filters)
        assert ((kept == probs) | (kept == 0)).all()
        for number in (0.0, 0.3, 0.999999, 1 - 2**-53):
            numbers = torch.full((40,), number, dtype=torch.float64)
            token_ids = draw_filtered(probs, numbers, filters).unsqueeze(1)
            assert (kept.gather(1, token_ids) > 0).all()
        least = torch.where(kept > 0, kept, 2.0).amin(dim=1, keepdim=True)
        above = torch.where(probs > least, probs, 0.0).double().sum(dim=1)
        assert ((kept > 0).sum(dim=1) <= top_k).all() and (above < top_p + 1e-6).all()
