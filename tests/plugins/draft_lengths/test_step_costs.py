"""What is learned of steps' costs holds on machines that are noisy and change their pace."""

from __future__ import annotations

import random

import pytest

from tokenmill.plugins.draft_lengths.adaptive.step_costs import QUIET_STEPS, StepCosts


def learned(drafting: dict[int, float], base: float = 0.010, num_requests: int = 8) -> StepCosts:
    """Steps without drafts, and steps with so many tokens."""
    costs = StepCosts()
    for _ in range(30):
        for _ in range(QUIET_STEPS):
            costs.add_step(num_requests, num_requests, base)
        for num_tokens, seconds in drafting.items():
            costs.add_step(num_requests, num_tokens, seconds)
    return costs


def ratio(costs: StepCosts, num_tokens: int, num_requests: int = 8) -> float:
    line = costs.line(num_requests)
    return line.seconds(num_tokens) / line.seconds(num_requests)


@pytest.mark.parametrize(("spike_rate", "spike"), [(0.05, 3.0), (0.2, 2.0)])
def test_a_noisy_machine_does_not_move_what_drafts_cost_beside_none(
    spike_rate: float, spike: float
) -> None:
    costs, rng = learned({16: 0.012}), random.Random(3)
    for _ in range(20_000):
        costs.add_step(8, 8, 0.010 * (spike if rng.random() < spike_rate else 1.0))
        if rng.random() < 0.005:
            costs.add_step(8, 16, 0.012)
    assert 1.05 < ratio(costs, 16) < 1.35


@pytest.mark.parametrize("pace", [0.6, 1.6])
def test_costs_that_are_not_seen_follow_the_pace_of_those_that_are(pace: float) -> None:
    costs = learned({16: 0.015})
    for _ in range(200):
        costs.add_step(8, 8, 0.010 * pace)
    assert ratio(costs, 16) == pytest.approx(1.5, rel=0.12)
    for _ in range(200):
        costs.add_step(8, 8, 0.010)
    assert ratio(costs, 16) == pytest.approx(1.5, rel=0.01)


def test_a_batch_that_grows_is_not_a_slower_machine() -> None:
    costs = learned({26: 0.020}, base=0.010, num_requests=10)
    before = ratio(costs, 26, 10)
    for _ in range(200):
        costs.add_step(13, 13, 0.013)
    for _ in range(20):
        costs.add_step(10, 10, 0.010)
    assert ratio(costs, 26, 10) == pytest.approx(before, rel=0.15)


def test_steps_that_asked_or_were_held_back_tell_nothing_of_steps_without_drafts() -> None:
    costs = learned({16: 0.015})
    for _ in range(300):
        costs.add_step(8, 8, 0.030, is_plain=False)
    assert ratio(costs, 16) == pytest.approx(1.5, rel=0.01)


def test_what_searching_took_is_paid_by_what_it_found() -> None:
    costs, rng = learned({16: 0.015}), random.Random(3)
    for _ in range(150):
        for _ in range(9):
            costs.add_step(8, 8, rng.uniform(0.0095, 0.0115), is_plain=False)  # 0.0005 more
            costs.add_proposing(8, 0, 0.0001)
        costs.add_step(8, 8, 0.010, is_plain=False)
        costs.add_proposing(8, 4, 0.0004)
        costs.add_step(8, 16, 0.015)
    assert costs.vain_seconds(8) == pytest.approx(9 * 0.0006, rel=0.25)
    assert costs.pass_seconds(8) == pytest.approx(0.0001)


def test_what_was_measured_is_not_raised_by_less_for_more() -> None:
    costs = learned({40: 0.0125, 64: 0.0120}, num_requests=32)
    for num_tokens in (33, 40, 64):
        assert costs.line(32).seconds(num_tokens) <= 0.0126


def test_of_one_known_cost_of_drafts_more_of_them_cost_nothing_more() -> None:
    """Else a cost of all drafts would be taken for one of each, and longer ones never be tried."""
    costs = learned({9: 0.013})
    assert ratio(costs, 10) == pytest.approx(1.3, rel=0.05)
    assert ratio(costs, 40) == pytest.approx(1.3, rel=0.05)


def test_a_single_draft_costs_what_any_draft_costs() -> None:
    costs = learned({16: 0.014, 24: 0.016})
    assert ratio(costs, 9) == pytest.approx(1.225, rel=0.05)
