"""The queues' own check names the request that stands where it should not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokenmill.core.engine.queues import RequestQueues
from tokenmill.core.engine.request import Request, RequestStatus
from tokenmill.core.requests.sampling_params import SamplingParams


def make_queues() -> RequestQueues:
    """r0 and r1 run, r2 waits."""
    queues = RequestQueues()
    for index in range(3):
        request = Request(
            request_id=f"r{index}",
            prompt_token_ids=(1, 2),
            sampling_params=SamplingParams(),
            max_tokens=4,
            arrival_time=0.0,
            seed=0,
        )
        queues.add(request)
        if index < 2:
            queues.start(request)
    queues.check()
    return queues


def lose_from_waiting(queues: RequestQueues) -> None:
    del queues.waiting["r2"]


def wait_and_run(queues: RequestQueues) -> None:
    queues.waiting["r1"] = queues.running[1]


def run_twice(queues: RequestQueues) -> None:
    queues.running.append(queues.running[0])


def end_without_leaving(queues: RequestQueues) -> None:
    queues.running[0].status = RequestStatus.FINISHED


def stay_known(queues: RequestQueues) -> None:
    queues.end(queues.running[0])


def run_out_of_order(queues: RequestQueues) -> None:
    queues.running.reverse()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lose_from_waiting, "'r2' is waiting: the waiting queue is wrong"),
        (wait_and_run, "'r1' is running: the waiting queue is wrong"),
        (end_without_leaving, "'r0' is finished: the running queue is wrong"),
        (stay_known, "'r0' ended and is still known"),
        (run_twice, r"a request runs twice: \['r0', 'r1', 'r0'\]"),
        (run_out_of_order, r"not in the order of their rank: \['r1', 'r0'\]"),
    ],
)
def test_a_request_that_stands_wrongly_is_named(
    spoil: Callable[[RequestQueues], None], message: str
) -> None:
    queues = make_queues()
    spoil(queues)
    with pytest.raises(AssertionError, match=message):
        queues.check()
