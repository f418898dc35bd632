"""The search finds planted optima with few trials, and goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.tuning.reasons import explain, simplify
from tokenmill.tuning.search import Trial, search

from .tuning import CLIFF, make_cliff_space, make_planner


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_planted_optimum_is_found(tmp_path: Path, seed: int) -> None:
    planner = make_planner(CLIFF)
    found = search(planner, make_cliff_space(), 15, tmp_path, seed, lambda count, trial: None)
    assert len(found) == 15
    assert simplify(planner, found[0].settings) == {"max_num_batched_tokens": 128}
    assert found[0].capacity.goodput > 3 * planner.capacity({}).goodput


def test_the_given_settings_are_tried_first(tmp_path: Path) -> None:
    tried: list[Trial] = []
    search(make_planner(), make_cliff_space(), 3, tmp_path, 0, lambda _, trial: tried.append(trial))
    assert tried[0].settings == {} and len(tried) == 3


def test_a_search_goes_on_where_it_was(tmp_path: Path) -> None:
    space = make_cliff_space()
    first = search(make_planner(), space, 6, tmp_path, 0, lambda count, trial: None)
    counts: list[int] = []
    second = search(make_planner(), space, 9, tmp_path, 0, lambda count, _: counts.append(count))
    assert counts == list(range(1, 10))
    assert all(one.settings in [other.settings for other in second] for one in first)


def test_a_small_space_is_searched_whole(tmp_path: Path) -> None:
    space = make_cliff_space()
    found = search(make_planner(), space, 1000, tmp_path, 0, lambda count, trial: None)
    assert len(found) == space.size == 36


def test_reasons_name_what_matters_and_what_limits_cost() -> None:
    planner, settings = make_planner(CLIFF, "ttft:8"), {"max_num_batched_tokens": 128}
    reasons = explain(planner, settings)
    assert reasons.losses["max_num_batched_tokens"] > 0.5
    assert reasons.without_limit["ttft"] > 1.2 * planner.capacity(settings).goodput
