"""The highest request rate within limits."""

from __future__ import annotations

import math

import pytest

from tokenmill.tuning.capacity import PRECISION

from ..planning.planning import PER_TOKEN
from .tuning import make_planner


def test_without_limits_all_requests_come_at_once() -> None:
    found = make_planner().capacity({})
    assert found.rate == math.inf and found.outcome is not None
    assert found.goodput == pytest.approx(12 / found.outcome.duration)


def test_the_rate_is_the_highest_that_keeps_the_limit() -> None:
    limited = make_planner(PER_TOKEN, "ttft:400")
    found = limited.capacity({})
    assert found.outcome is not None and found.outcome.p99_ttft_ms is not None
    assert found.outcome.p99_ttft_ms <= 400

    def is_kept(rate: float) -> bool:
        return limited.limits.are_kept(limited._run({}, rate), 12)

    assert is_kept(found.rate) and not is_kept(found.rate * PRECISION * PRECISION)


def test_an_impossible_limit_has_no_rate() -> None:
    # A prompt of 100 tokens alone takes 110 ms.
    found = make_planner(PER_TOKEN, "ttft:100").capacity({})
    assert (found.rate, found.goodput) == (0.0, 0.0)


def test_a_setting_that_cannot_work_says_why() -> None:
    found = make_planner().capacity({"max_num_seqs": 0})
    assert found.goodput == 0 and "--max-num-seqs must be" in found.error


def test_a_setting_is_simulated_once() -> None:
    planner = make_planner()
    planner.capacity({"max_num_seqs": 4, "block_size": 8})
    runs = planner.num_runs
    planner.capacity({"block_size": 8, "max_num_seqs": 4})
    assert planner.num_runs == runs
