"""A stall grows with the time that the supervisor watches it, and not with pauses."""

from __future__ import annotations

import pytest

from tokenmill.core.remote.stalls import MAX_GROWTH, Stall


def test_a_pause_counts_as_one_short_check() -> None:
    stall = Stall()
    for reported in (0.0, 0.1, 100.1, 100.2):
        stall.note(reported)
    assert stall.seconds == pytest.approx(0.1 + MAX_GROWTH + 0.1)
    stall.note(0.05)
    assert stall.seconds == 0.05


def test_an_engine_that_hangs_after_a_pause_is_noticed() -> None:
    stall = Stall()
    stall.note(100.0)
    for check in range(100):
        stall.note(100.0 + check / 10)
    assert stall.seconds > 9.0


def test_checks_that_come_late_still_see_a_stall() -> None:
    stall = Stall()
    for check in range(10):
        stall.note(5.0 * check)
    assert stall.seconds == 9 * MAX_GROWTH
