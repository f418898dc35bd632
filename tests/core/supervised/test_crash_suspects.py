"""Requests that were in the steps of crashes."""

from __future__ import annotations

import pytest

from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.processes.watching.restarts import PERIOD
from tokenmill.core.supervised.crash_suspects import MAX_SUSPECTS, CrashSuspects

POISON, INNOCENT, OTHER = b"poison", b"innocent", b"other"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def suspects(clock: Clock) -> CrashSuspects:
    return CrashSuspects(clock)


def is_refused(suspects: CrashSuspects, digest: bytes) -> bool:
    try:
        suspects.check(digest)
    except InvalidRequestError:
        return True
    return False


def test_the_first_crash_convicts_nobody_and_one_with_a_single_suspect_does(
    suspects: CrashSuspects,
) -> None:
    assert not suspects
    assert not suspects.add_crash({POISON: 5, INNOCENT: 9})
    assert suspects.is_suspect(POISON) and not is_refused(suspects, POISON)
    assert suspects.add_crash({POISON: 5, OTHER: 3})
    assert is_refused(suspects, POISON) and not suspects.is_suspect(POISON)
    assert suspects.is_suspect(INNOCENT) and not is_refused(suspects, INNOCENT)
    assert not suspects.is_suspect(OTHER), "the culprit is known"


def test_a_request_that_is_alone_in_a_crash_is_no_culprit_yet(suspects: CrashSuspects) -> None:
    assert not suspects.add_crash({POISON: 5})
    assert not is_refused(suspects, POISON)
    assert suspects.add_crash({POISON: 5})
    with pytest.raises(InvalidRequestError, match="refused for 10 minutes; change the prompt"):
        suspects.check(POISON)


def test_two_suspects_in_one_crash_stay_suspects(suspects: CrashSuspects) -> None:
    suspects.add_crash({POISON: 5, INNOCENT: 9})
    assert not suspects.add_crash({POISON: 5, INNOCENT: 9, OTHER: 1})
    assert suspects.is_suspect(POISON) and suspects.is_suspect(INNOCENT)
    assert not suspects.is_suspect(OTHER)


@pytest.mark.parametrize(("num_tokens", "is_cleared"), [(8, False), (9, True), (None, True)])
def test_a_suspect_is_cleared_at_the_token_of_the_crash_or_at_its_end(
    suspects: CrashSuspects, num_tokens: int | None, is_cleared: bool
) -> None:
    suspects.add_crash({INNOCENT: 9})
    suspects.clear(INNOCENT, num_tokens)
    assert suspects.is_suspect(INNOCENT) is not is_cleared


def test_a_request_that_was_being_queued_is_cleared_by_its_first_step(
    suspects: CrashSuspects,
) -> None:
    suspects.add_crash({INNOCENT: 0})
    suspects.clear(INNOCENT, 0)
    assert suspects.is_suspect(INNOCENT)
    suspects.clear(INNOCENT, 1)
    assert not suspects.is_suspect(INNOCENT)


def test_suspicion_and_conviction_expire(suspects: CrashSuspects, clock: Clock) -> None:
    suspects.add_crash({POISON: 1})
    clock.now = PERIOD + 1
    assert not suspects.is_suspect(POISON)
    suspects.add_crash({POISON: 1})
    suspects.add_crash({POISON: 1})
    assert is_refused(suspects, POISON)
    clock.now = 2 * PERIOD + 2
    assert not is_refused(suspects, POISON)
    assert not suspects


def test_the_oldest_suspects_are_forgotten(suspects: CrashSuspects) -> None:
    suspects.add_crash({POISON: 1})
    for number in range(2):
        others = range(number * MAX_SUSPECTS // 2, (number + 1) * MAX_SUSPECTS // 2)
        suspects.add_crash({str(other).encode(): 1 for other in others})
    assert not suspects.is_suspect(POISON)
