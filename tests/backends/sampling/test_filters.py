"""Both ways to the bound of min_p, top_k and top_p, against sorting in plain Python."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.backends.sampling.filters import Filters, bound_among_best, bound_by_histogram


def make_filters(top_k: int, top_p: float, min_p: float, num_rows: int = 1) -> Filters:
    def column(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((num_rows, 1), value, dtype=dtype)

    return Filters(
        min_p_r1=column(min_p, torch.float32),
        top_k_r1=column(top_k, torch.int64),
        top_p_r1=column(top_p, torch.float64),
    )


def kept_tokens(probs: Sequence[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """The definition, in order: min_p, top_k of what is left, top_p of the mass of that."""
    floor = float(torch.tensor(max(probs)) * torch.tensor(min_p))
    left = {i for i, p in enumerate(probs) if p >= floor}
    kth = sorted((probs[i] for i in left), reverse=True)[:top_k][-1]
    left = {i for i in left if probs[i] >= kth}
    wanted = top_p * (1.0 if len(left) == len(probs) else math.fsum(probs[i] for i in left))
    mass, edge = 0.0, 0.0
    for p in sorted((probs[i] for i in left), reverse=True):
        if mass >= wanted:
            break
        mass, edge = mass + p, p
    return {i for i in left if probs[i] >= edge}


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, int, float, float]:
    """A row that sums to 1 with many ties, and filters that fall onto no sum of it by chance."""
    weights = draw(st.lists(st.integers(0, 40), min_size=1, max_size=300).filter(any))
    if draw(st.booleans()):  # nearly equal: only the last bits tell them apart
        weights = [100_000 + weight for weight in weights]
    probs = torch.tensor(weights).double().div(sum(weights)).float()
    top_k = draw(st.integers(1, len(weights)))
    top_p = draw(st.integers(1, 499)) / 500 + 1 / 7777 if draw(st.booleans()) else math.inf
    min_p = draw(st.integers(0, 39)) / 40 + 1 / 777 if draw(st.booleans()) else 0.0
    return probs.unsqueeze(0), top_k, top_p, min_p


def possible(probs_rv: torch.Tensor, tokens: set[int]) -> set[int]:
    """A token of probability 0 may stay or go: it is never drawn."""
    return {i for i in tokens if probs_rv[0, i] > 0}


def bound_from_best(probs_rv: torch.Tensor, size: int, filters: Filters) -> float | None:
    best_rs = probs_rv.topk(min(size, probs_rv.shape[1]), dim=1).values
    cdf_rs = best_rs.cumsum(dim=1, dtype=torch.float64)
    bound_r1, is_enough_r = bound_among_best(best_rs, cdf_rs, filters, probs_rv.shape[1])
    return float(bound_r1) if bool(is_enough_r) else None


@settings(max_examples=300, deadline=None)
@given(case=cases(), size=st.integers(1, 300))
def test_what_is_kept_follows_the_definition(
    case: tuple[torch.Tensor, int, float, float], size: int
) -> None:
    """From the histogram always, from the likeliest tokens wherever they claim to be enough."""
    probs_rv, top_k, top_p, min_p = case
    filters = make_filters(top_k, top_p, min_p)
    expected = possible(probs_rv, kept_tokens(probs_rv[0].tolist(), top_k, top_p, min_p))
    for bound in (
        float(bound_by_histogram(probs_rv, filters)),
        bound_from_best(probs_rv, size, filters),
    ):
        if bound is not None:
            kept = {i for i, p in enumerate(probs_rv[0].tolist()) if p >= bound}
            assert possible(probs_rv, kept) == expected


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(5, math.inf, 0.0), (1000, 0.5, 0.0), (1000, math.inf, 0.5), (20, 0.9, 0.1)],
)
def test_a_few_of_the_likeliest_tokens_are_enough_for_a_steep_row(
    top_k: int, top_p: float, min_p: float
) -> None:
    probs_rv = (-torch.arange(1000.0)).softmax(dim=0).unsqueeze(0)
    assert bound_from_best(probs_rv, 32, make_filters(top_k, top_p, min_p)) is not None


def test_tokens_that_cannot_come_need_no_look() -> None:
    """Where only a few have any probability, top_k and top_p may ask for more than there are."""
    logits = torch.full((1, 1000), -1e4)
    logits[0, :7] = torch.arange(7.0)
    for filters in (make_filters(50, math.inf, 0.0), make_filters(1000, 0.99999, 0.0)):
        assert bound_from_best(logits.softmax(dim=1), 32, filters) is not None


def test_sorted_tokens_that_end_within_the_filters_are_not_enough() -> None:
    """Also when top_k reaches beyond them but top_p is content with what they hold."""
    probs_rv = torch.linspace(1, 2, 1000).softmax(dim=0).unsqueeze(0)
    for filters in (
        make_filters(500, math.inf, 0.0),
        make_filters(1000, 0.9, 0.0),
        make_filters(1000, math.inf, 0.1),
        make_filters(500, 0.01, 0.0),
    ):
        assert bound_from_best(probs_rv, 100, filters) is None


def test_rows_with_equal_tokens_at_the_edge_keep_all_of_them() -> None:
    probs_rv = torch.tensor([[0.1, 0.25, 0.25, 0.25, 0.15]])
    for filters in (make_filters(2, math.inf, 0.0), make_filters(5, 0.3, 0.0)):
        assert float(bound_by_histogram(probs_rv, filters)) == 0.25
        assert bound_from_best(probs_rv, 5, filters) == 0.25


def test_top_p_is_content_with_a_mass_that_equals_it() -> None:
    probs_rv = torch.tensor([[0.125, 0.5, 0.25, 0.0625, 0.0625]])
    for top_p, edge in ((0.5, 0.5), (0.75, 0.25), (0.875, 0.125)):
        filters = make_filters(5, top_p, 0.0)
        assert float(bound_by_histogram(probs_rv, filters)) == edge
        assert bound_from_best(probs_rv, 5, filters) == edge


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_a_bound_has_the_same_last_bits_alone_as_among_others() -> None:
    """Also where torch would add up a single row in parts; `top_p` falls onto a sum exactly."""
    generator = torch.Generator().manual_seed(6)
    row_1v = (3 * torch.randn(1, 49152, generator=generator)).softmax(dim=1)
    rows_rv = row_1v.expand(4, -1).contiguous()
    cumulative = row_1v[0].sort(descending=True).values.double().cumsum(dim=0)
    for top_p in (cumulative / rows_rv.double().sum(dim=1)[0])[4000:14000:1000].tolist():
        alone = bound_by_histogram(row_1v, make_filters(49152, top_p, 0.0))
        together = bound_by_histogram(rows_rv, make_filters(49152, top_p, 0.0, 4))
        assert torch.equal(together, alone.expand(4, -1))


def test_each_row_has_its_own_bound() -> None:
    generator = torch.Generator().manual_seed(0)
    probs_rv = torch.randn(50, 400, generator=generator).softmax(dim=1)
    together = bound_by_histogram(probs_rv, make_filters(30, 0.8, 0.01, 50))
    for row in range(50):
        alone = bound_by_histogram(probs_rv[row : row + 1], make_filters(30, 0.8, 0.01))
        assert torch.equal(together[row], alone[0])


def test_a_row_of_nan_disturbs_no_other() -> None:
    probs_rv = torch.full((3, 200), 1 / 200)
    probs_rv[1] = torch.nan
    bounds = bound_by_histogram(probs_rv, make_filters(10, 0.5, 0.1, 3))
    assert bounds[0] == bounds[2] == probs_rv[0, 0]
