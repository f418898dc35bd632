"""Back-off, and when a parent gives up."""

from __future__ import annotations

from tokenmill.core.processes.watching.restarts import LONGEST_DELAY, PERIOD, Restarts


def test_the_first_restart_comes_at_once_and_the_next_ones_wait_longer() -> None:
    restarts = Restarts(8)
    delays = [restarts.next_delay(float(second)) for second in range(8)]
    assert delays[0] == 0
    assert delays[1:] == sorted(d for d in delays[1:] if d is not None)
    assert delays[-1] == LONGEST_DELAY


def test_it_gives_up_after_the_allowed_number_and_forgets_old_restarts() -> None:
    restarts = Restarts(5)
    assert None not in [restarts.next_delay(float(second)) for second in range(5)]
    assert restarts.next_delay(6.0) is None
    assert restarts.next_delay(PERIOD + 0.5) is not None, "the first is older than the period"
    assert restarts.next_delay(PERIOD + 0.6) is None
    assert restarts.next_delay(3 * PERIOD) == 0, "all are forgotten"


def test_failures_whose_cause_is_known_do_not_count() -> None:
    restarts = Restarts(1)
    for second in range(0, 20, 2):
        assert restarts.next_delay(float(second)) == 0
        assert restarts.next_delay(second + 1.0, is_explained=True) == 0
    assert restarts.next_delay(20.0) == 0
    assert restarts.next_delay(21.0) is None
    assert restarts.next_delay(22.0, is_explained=True) == 0


def test_a_failure_whose_cause_is_known_may_be_the_first() -> None:
    restarts = Restarts(1)
    assert restarts.next_delay(0.0, is_explained=True) == 0
    assert restarts.next_delay(1.0) == 0
    assert restarts.next_delay(2.0) is None


def test_restarts_that_could_only_fail_do_not_count() -> None:
    restarts = Restarts(1)
    assert restarts.next_delay(0.0) == 0
    for second in range(1, 20):
        assert restarts.next_delay(float(second), counts=False) == LONGEST_DELAY
    assert restarts.next_delay(20.0) is None
