"""Whether rounds on real servers show a gain, and which requests count."""

from __future__ import annotations

import pytest

from tokenmill.bench.running import Answer
from tokenmill.tuning.limits import Limits
from tokenmill.tuning.rounds import Verdict, _keeps, _turn


@pytest.mark.parametrize(
    ("given", "tuned", "is_better"),
    [
        ([1.0, 1.1, 0.9], [1.3, 1.2, 1.4], True),
        ([1.0, 1.1, 1.25], [1.3, 1.2, 1.4], False),
        ([1.3, 1.2, 1.4], [1.0, 1.1, 0.9], False),
    ],
)
def test_a_gain_counts_if_it_is_larger_than_the_spread(
    given: list[float], tuned: list[float], is_better: bool
) -> None:
    verdict = Verdict(given=given, tuned=tuned)
    assert verdict.is_better is is_better
    assert verdict.gain == pytest.approx(sorted(tuned)[1] / sorted(given)[1] - 1)


def test_there_is_no_gain_over_settings_that_never_keep_the_limits() -> None:
    verdict = Verdict(given=[0.0, 0.0], tuned=[1.0, 1.1])
    assert verdict.is_better and verdict.gain is None


def test_candidates_take_turns_in_being_first() -> None:
    assert [_turn(["a", "b", "c"], index)[0] for index in range(4)] == ["a", "b", "c", "a"]


@pytest.mark.parametrize("text", ["ttft:99", "tpot:39", "itl:59", "e2el:219"])
def test_an_answer_must_keep_each_limit(text: str) -> None:
    answer = Answer(
        start=0.0,
        num_prompt_tokens=5,
        num_output_tokens=4,
        ttft=0.1,
        gaps=[0.03, 0.03, 0.06],
        latency=0.22,
    )
    name, _, value = text.partition(":")
    assert not _keeps(answer, Limits.parse([text]))
    assert _keeps(answer, Limits.parse([f"{name}:{int(value) + 2}"]))
    answer.error = "refused"
    assert not _keeps(answer, Limits())
