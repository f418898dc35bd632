"""Random lives of the engine: every token right, every block back, every request ended once."""

from __future__ import annotations

import pytest

from .driver import Life


def run_seeds(first: int, last: int) -> int:
    """Run them all; a failing one is named with how to replay it. Returns the preemptions."""
    preemptions = 0
    for seed in range(first, last):
        try:
            preemptions += Life(seed).run().num_preemptions
        except Exception as error:
            error.add_note(
                f"seed {seed} failed; replay: python -c "
                f'"from tests.simulation.driver import Life; Life({seed}).run()"'
            )
            raise
    return preemptions


def test_two_hundred_seeds_run_clean() -> None:
    assert run_seeds(0, 200) > 1000


def test_a_seed_replays_exactly() -> None:
    assert Life(11).run() == Life(11).run()


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_thousand_seeds_run_clean() -> None:
    run_seeds(0, 10_000)
