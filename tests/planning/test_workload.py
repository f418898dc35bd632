"""Random workloads: their shape, and that a seed draws the same one again."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from typing import Any

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.planning.workload import SyntheticWorkload


def test_the_same_seed_draws_the_same_requests_and_another_does_not() -> None:
    draw = SyntheticWorkload(num_prompts=20, random_range_ratio=0.5, seed=3).draw
    assert draw() == draw()
    assert draw() != SyntheticWorkload(num_prompts=20, random_range_ratio=0.5, seed=4).draw()


def test_lengths_are_exact_without_a_range_and_within_it_with_one() -> None:
    exact = SyntheticWorkload(num_prompts=5, random_input_len=30, random_output_len=7).draw()
    assert {(len(r.prompt_token_ids), r.max_tokens) for r in exact} == {(30, 7)}
    ranged = SyntheticWorkload(
        num_prompts=300, random_input_len=30, random_output_len=8, random_range_ratio=0.5
    ).draw()
    lengths = {len(request.prompt_token_ids) for request in ranged}
    assert min(lengths) == 15 and max(lengths) == 45
    assert {request.max_tokens for request in ranged} == set(range(4, 13))


def test_all_prompts_begin_with_the_prefix_which_comes_on_top() -> None:
    requests = SyntheticWorkload(num_prompts=10, random_input_len=20, random_prefix_len=12).draw()
    assert {len(request.prompt_token_ids) for request in requests} == {32}
    assert len({request.prompt_token_ids[:12] for request in requests}) == 1
    assert len({request.prompt_token_ids[12:16] for request in requests}) == 10


def test_the_rate_is_met_on_average_and_the_first_comes_at_once() -> None:
    for burstiness in (0.3, 1.0, 5.0):
        requests = SyntheticWorkload(
            num_prompts=3000, random_input_len=1, request_rate=4.0, burstiness=burstiness
        ).draw()
        times = [request.at for request in requests]
        assert times[0] == 0 and times == sorted(times)
        assert times[-1] == pytest.approx(3000 / 4, rel=0.15)


def test_burstiness_changes_how_uneven_arrivals_are() -> None:
    def unevenness(burstiness: float) -> float:
        requests = SyntheticWorkload(
            num_prompts=2000, random_input_len=1, request_rate=1.0, burstiness=burstiness
        ).draw()
        gaps = [b.at - a.at for a, b in pairwise(requests)]
        return statistics.stdev(gaps) / statistics.mean(gaps)

    assert unevenness(0.25) > unevenness(1.0) > unevenness(4.0)


def test_an_infinite_rate_means_all_at_once() -> None:
    requests = SyntheticWorkload(num_prompts=9, request_rate=math.inf).draw()
    assert {request.at for request in requests} == {0.0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_prompts": 0}, "--num-prompts must be at least 1, got 0"),
        ({"random_input_len": 0}, "--random-input-len"),
        ({"random_output_len": -1}, "--random-output-len"),
        ({"random_range_ratio": 1.0}, "--random-range-ratio"),
        ({"random_prefix_len": -1}, "--random-prefix-len"),
        ({"request_rate": 0.0}, "--request-rate must be positive, got 0.0"),
        ({"request_rate": math.nan}, "--request-rate"),
        ({"burstiness": math.inf}, "--burstiness"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_its_flag(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SyntheticWorkload(**options)
