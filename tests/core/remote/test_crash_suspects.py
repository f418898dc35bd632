"""Requests that were present in crashes."""

from __future__ import annotations

import pytest

from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.remote.crash_suspects import MAX_SUSPECTS, CrashSuspects
from tokenmill.core.sampling_params import OutputKind, SamplingParams

GREEDY = SamplingParams(temperature=0)
ASKED = ((1, 2, 3), GREEDY)


def is_refused(suspects: CrashSuspects, prompt: tuple[int, ...], params: SamplingParams) -> bool:
    try:
        suspects.check(prompt, params)
    except InvalidRequestError:
        return True
    return False


def test_a_request_is_refused_after_two_crashes_and_not_after_one() -> None:
    suspects = CrashSuspects()
    suspects.add_crash([ASKED, ASKED])
    assert not is_refused(suspects, *ASKED), "twice in one crash is one crash"
    suspects.add_crash([ASKED])
    with pytest.raises(InvalidRequestError, match="crashed, 2 times"):
        suspects.check(*ASKED)


def test_requests_that_were_sent_to_the_next_engine_together_are_not_refused_together() -> None:
    suspects = CrashSuspects()
    neighbour = ((4, 5), GREEDY)
    suspects.add_crash([ASKED, neighbour])
    suspects.add_crash([], resent=[ASKED, neighbour])
    assert not is_refused(suspects, *ASKED) and not is_refused(suspects, *neighbour)
    suspects.add_crash([ASKED])
    suspects.add_crash([], resent=[neighbour, neighbour])
    assert is_refused(suspects, *ASKED) and is_refused(suspects, *neighbour)


def test_it_is_known_by_prompt_and_parameters_however_it_is_streamed() -> None:
    suspects = CrashSuspects()
    for _ in range(2):
        suspects.add_crash([ASKED])
    assert is_refused(suspects, (1, 2, 3), GREEDY.with_changes(output_kind=OutputKind.DELTA))
    assert not is_refused(suspects, (1, 2, 4), GREEDY)
    assert not is_refused(suspects, (1, 2, 3), GREEDY.with_changes(seed=1))


def test_an_answer_clears_a_request() -> None:
    suspects = CrashSuspects()
    suspects.add_crash([ASKED])
    suspects.acquit(*ASKED)
    suspects.add_crash([ASKED])
    assert not is_refused(suspects, *ASKED)


def test_the_oldest_suspects_are_forgotten() -> None:
    suspects = CrashSuspects()
    for _ in range(2):
        suspects.add_crash([ASKED])
    for number in range(2):
        others = range(number * MAX_SUSPECTS // 2, (number + 1) * MAX_SUSPECTS // 2)
        suspects.add_crash([((9, other), GREEDY) for other in others])
    assert not is_refused(suspects, *ASKED)
