"""Costs of steps with drafts hold on machines that are noisy and change their pace."""

from __future__ import annotations

import random

import pytest

from tokenmill.plugins.draft_lengths.adaptive.costs import FRESH_STEPS, STALE_STEPS, StepCosts


class Steps:
    """Steps of one engine: a few without drafts, and then one with, in turn."""

    def __init__(self) -> None:
        self.costs = StepCosts()
        self.number = 0

    def run(self, drafting: dict[int, float], *, plain: float = 0.010, rounds: int = 10) -> None:
        """Seconds by number of draft tokens."""
        for _ in range(rounds):
            for num_drafts, seconds in drafting.items():
                for _ in range(4):
                    self.number += 1
                    self.costs.add_plain(plain, self.number)
                self.number += 1
                self.costs.add(num_drafts, seconds, self.number)

    def cost(self, num_drafts: float) -> float:
        return self.costs.line(self.number).cost(num_drafts)


def test_a_cost_is_told_in_steps_without_drafts_and_filled_in_between() -> None:
    steps = Steps()
    steps.run({0: 0.011, 4: 0.012, 8: 0.016})
    assert [steps.cost(count) for count in (0, 2, 4, 6, 8)] == pytest.approx(
        [1.1, 1.15, 1.2, 1.4, 1.6]
    )


def test_a_machine_that_becomes_slower_does_not_change_costs() -> None:
    steps = Steps()
    steps.run({8: 0.015})
    steps.run({8: 0.045}, plain=0.030)
    assert steps.cost(8) == pytest.approx(1.5)


def test_without_fresh_steps_to_compare_with_nothing_is_learned() -> None:
    steps = Steps()
    steps.run({8: 0.015})
    for _ in range(FRESH_STEPS + 1):
        steps.number += 1
        steps.costs.add(8, 0.030, steps.number)
    assert not steps.costs.is_comparable(steps.number)
    before = steps.cost(8)
    steps.number += 1
    assert steps.costs.add(8, 0.030, steps.number) == 1.0
    assert steps.cost(8) == before


@pytest.mark.parametrize(("spike_rate", "spike"), [(0.05, 3.0), (0.2, 2.0), (0.001, 10000.0)])
def test_a_noisy_machine_hardly_moves_costs(spike_rate: float, spike: float) -> None:
    steps, rng = Steps(), random.Random(3)
    for _ in range(2000):
        seconds = [0.010 * (spike if rng.random() < spike_rate else 1.0) for _ in range(2)]
        steps.run({16: 1.2 * seconds[0]}, plain=seconds[1], rounds=1)
    assert 1.1 < steps.cost(16) < 1.6


def test_what_was_measured_is_not_raised_by_less_for_more() -> None:
    steps = Steps()
    steps.run({8: 0.0125, 32: 0.0120})
    assert steps.cost(4) <= steps.cost(8) <= steps.cost(32) == pytest.approx(1.2)


def test_more_drafts_than_ever_measured_may_be_cheap() -> None:
    """Else the cost of any draft would count as the cost of each; longer ones were never tried."""
    steps = Steps()
    steps.run({1: 0.013})
    assert steps.cost(40) == steps.cost(1) == pytest.approx(1.3)


def test_a_cost_that_was_not_measured_for_long_is_forgotten() -> None:
    steps = Steps()
    steps.run({2: 0.011, 8: 0.030})
    steps.number += STALE_STEPS - 100
    steps.run({2: 0.011}, rounds=100)
    assert steps.cost(8) == pytest.approx(1.1)
