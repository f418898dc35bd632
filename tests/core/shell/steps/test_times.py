"""The expected duration of a step depends on earlier steps of its size or smaller."""

from __future__ import annotations

import pytest

from tokenmill.core.contract.client import STALL_FACTOR
from tokenmill.core.shell.steps.times import StepTimes

LONG, DECODE = 2048, 1


def measured(*steps: tuple[int, float], load_seconds: float = 1.0) -> StepTimes:
    times = StepTimes(load_seconds)
    for num_tokens, seconds in steps:
        times.note(num_tokens, seconds)
    return times


def test_the_first_step_may_take_as_long_as_loading() -> None:
    patience = STALL_FACTOR * measured(load_seconds=7.0).expected(LONG)
    assert patience == pytest.approx(7.0)


def test_a_first_long_step_has_a_few_times_what_its_tokens_can_take() -> None:
    in_proportion = 0.067 * LONG / 16
    patience = STALL_FACTOR * measured((DECODE, 0.067)).expected(LONG)
    assert in_proportion < patience < 4 * in_proportion


def test_a_long_step_may_come_again_after_thousands_of_decode_steps() -> None:
    times = measured((LONG, 40.0), *[(DECODE, 0.1)] * 5000)
    assert times.expected(LONG) == 40.0


def test_a_decode_step_after_a_long_one_is_not_expected_to_be_long() -> None:
    assert measured((DECODE, 0.1), (LONG, 40.0)).expected(DECODE) == 0.1
    assert measured((LONG, 40.0)).expected(DECODE) == 40.0


def test_a_single_slow_step_is_forgotten() -> None:
    times = measured((DECODE, 5.0), *[(DECODE, 0.1)] * 500)
    assert times.expected(DECODE) == pytest.approx(0.1)
    assert times.expected(LONG) == pytest.approx(0.1 * LONG / 16)
