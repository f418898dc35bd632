"""The same requests at any rate."""

from __future__ import annotations

import math

import pytest

from tokenmill.tuning.traffic import Traffic

from ..planning.planning import make_request

REQUESTS = [make_request(number, 8, 2, at=float(number)) for number in range(5)]


def test_random_arrivals_have_the_rate() -> None:
    many = [make_request(number, 4, 1) for number in range(2000)]
    arrived = Traffic(requests=many, is_trace=False, seed=1).at_rate(20.0)
    assert arrived[-1].at == pytest.approx(100, rel=0.1)
    assert [one.prompt_token_ids for one in arrived] == [one.prompt_token_ids for one in many]


def test_a_trace_keeps_its_proportions() -> None:
    arrived = Traffic(requests=REQUESTS, is_trace=True).at_rate(10.0)
    assert [one.at for one in arrived] == pytest.approx([0, 0.125, 0.25, 0.375, 0.5])


@pytest.mark.parametrize("is_trace", [True, False])
def test_all_come_at_once_at_an_infinite_rate(is_trace: bool) -> None:
    arrived = Traffic(requests=REQUESTS, is_trace=is_trace).at_rate(math.inf)
    assert {one.at for one in arrived} == {0.0}
