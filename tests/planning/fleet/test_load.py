"""Arrival curves and tenants: the rate that was asked for, and the same requests for each seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.planning.fleet.curves import CURVES, Curve
from tokenmill.planning.fleet.search import find_replicas
from tokenmill.planning.fleet.tally import Gaps

from .fleets import draw, serve


@pytest.mark.parametrize("name", CURVES)
def test_each_curve_has_the_average_rate_and_repeats(name: str) -> None:
    curve = Curve(name=name, rate=5.0, period=1000.0)
    times = list(curve.times(2000.0, seed=3))
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert times == sorted(times) and times[0] >= 0 and times[-1] < 2000
    assert times == list(curve.times(2000.0, seed=3)) != list(curve.times(2000.0, seed=4))


def test_bursts_and_days_have_their_peaks_where_they_should() -> None:
    bursts = Curve(name="bursts", rate=5.0, period=1000.0, burst_factor=9.0)
    found = Counter(int(at // 100) for at in bursts.times(1000.0, seed=0))
    assert found[0] == pytest.approx(9 * sum(found[i] for i in range(1, 10)) / 9, rel=0.15)
    day = Curve(name="day", rate=5.0, period=1000.0, swing=0.8, noise=0.0)
    found = Counter(int(at // 250) for at in day.times(1000.0, seed=0))
    assert min(found[1], found[2]) > 1.5 * max(found[0], found[3])


def test_curves_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="--arrivals must be one of constant, bursts, day"):
        Curve(name="square")
    with pytest.raises(ConfigError, match="--swing must be in"):
        Curve(swing=2.0)
    with pytest.raises(ConfigError, match="--request-rate must be positive"):
        Curve(rate=0.0)


def test_prompts_of_a_tenant_begin_alike_and_no_two_are_equal() -> None:
    requests = draw(20.0, 20.0)
    begins: dict[str | None, set[tuple[int, ...]]] = {}
    for one in requests:
        begins.setdefault(one.session_id, set()).add(one.prompt_token_ids[:32])
    assert len(begins) == 5 and all(len(found) == 1 for found in begins.values())
    assert len({found.pop() for found in begins.values()}) == 5
    assert len({one.prompt_token_ids for one in requests}) == len(requests)
    counts = Counter(one.session_id for one in requests)
    assert counts["tenant-0"] > counts["tenant-1"] > counts["tenant-4"]


def test_gaps_are_kept_to_half_a_percent() -> None:
    gaps = Gaps()
    for number in range(1, 101):
        gaps.add(number / 1000)
    for fraction in (0.01, 0.5, 0.99, 1.0):
        exact = 100 * fraction
        found = gaps.percentile(fraction)
        assert found is not None and exact * 0.9999 <= found <= exact * 1.0051
    assert Gaps().percentile(0.5) is None


def test_the_search_finds_the_smallest_number_that_is_enough() -> None:
    requests = draw(60.0, 2.0)
    limits = {"ttft": 150.0}
    runs = {
        number: serve(requests, num_replicas=number, limits_ms=limits) for number in range(1, 7)
    }
    smallest = min(number for number, one in runs.items() if one.goodput >= 0.99)
    found = find_replicas(lambda number: runs[number], 0.99, 6)
    assert found.num_replicas == smallest > 1
    assert found.outcome == runs[smallest] and len(found.tried) < 6


def test_the_search_says_when_even_the_maximum_is_not_enough() -> None:
    requests = draw(60.0, 2.0)
    found = find_replicas(
        lambda number: serve(requests, num_replicas=number, limits_ms={"ttft": 1.0}), 0.99, 3
    )
    assert found.num_replicas is None and list(found.tried) == [1, 2, 3]
