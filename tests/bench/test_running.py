"""What is measured of a run: compared with the delays that a server planned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tokenmill.bench.client import Server
from tokenmill.bench.endpoints import Chat, Completions, Endpoint
from tokenmill.bench.prompts import Prompt
from tokenmill.bench.reports.figures import Wishes, describe
from tokenmill.bench.running import Load, Run, run

from .slow_server import SlowServer

PROMPT = Prompt(text="a b c", num_tokens=3, max_tokens=4)


def measure(
    slow: SlowServer,
    times: Sequence[float],
    *,
    endpoint: Endpoint | None = None,
    max_concurrency: int | None = None,
    prompts: Sequence[Prompt] = (),
    **extra: Any,
) -> Run:
    async def go() -> Run:
        chosen = endpoint or Completions()
        async with slow.running_() as served:
            load = Load(
                server=Server(url=served.url),
                endpoint=chosen,
                path=chosen.path,
                extra=extra,
                max_concurrency=max_concurrency,
            )
            try:
                return await run(load, prompts or [PROMPT] * len(times), times)
            finally:
                await load.server.close()

    return asyncio.run(go())


@pytest.mark.parametrize("endpoint", [Completions(), Chat()], ids=["completions", "chat"])
def test_times_are_at_least_the_planned_ones_and_in_their_order(endpoint: Endpoint) -> None:
    measured = measure(SlowServer(ttft=0.1, gap=0.03), [0.0], endpoint=endpoint)
    [answer] = measured.answers
    assert answer.is_ok and answer.text == "t0 t1 t2 t3 "
    assert (answer.num_prompt_tokens, answer.num_output_tokens) == (7, 4)
    assert answer.ttft >= 0.09 and len(answer.gaps) == 3
    assert sum(answer.gaps) >= 3 * 0.025
    assert answer.latency == pytest.approx(answer.ttft + sum(answer.gaps))


def test_requests_are_sent_at_their_times_although_the_server_is_slow() -> None:
    """An open loop: the third request does not wait for the first answer."""
    slow = SlowServer(ttft=1.0)
    measured = measure(slow, [0.0, 0.1, 0.2])
    first, second, third = (answer.start for answer in measured.answers)
    assert third < first + measured.answers[0].latency
    assert second - first >= 0.09 and third - second >= 0.09
    assert slow.most_running == 3


def test_no_more_requests_than_allowed_are_in_flight() -> None:
    slow = SlowServer()
    measured = measure(slow, [0.0] * 6, max_concurrency=2)
    assert slow.most_running == 2
    assert all(answer.is_ok for answer in measured.answers)
    assert measured.answers[-1].queued > 0.05 and measured.answers[0].queued < 0.05


def test_a_conversation_goes_on_with_the_server_s_answers() -> None:
    slow, system = SlowServer(ttft=0.05), {"role": "system", "content": "s"}
    prompts = [
        Prompt(text="a", num_tokens=1, max_tokens=1, messages=(system,)),
        Prompt(text="other", num_tokens=1, max_tokens=1),
        Prompt(text="b", num_tokens=1, max_tokens=2, after=0),
        Prompt(text="c", num_tokens=1, max_tokens=1, after=2),
    ]
    measured = measure(slow, [0.0] * 4, endpoint=Chat(), prompts=prompts)
    assert all(answer.is_ok for answer in measured.answers)
    asked = [[one["content"] for one in body["messages"]] for body in slow.bodies]
    assert ["other"] in asked and asked[-1] == ["s", "a", "t0 ", "b", "t0 t1 ", "c"]
    assert slow.most_running == 2


def test_a_conversation_ends_with_a_request_that_fails() -> None:
    slow = SlowServer(statuses=[503])
    prompts = [PROMPT, replace(PROMPT, after=0), replace(PROMPT, after=1)]
    measured = measure(slow, [0.0] * 3, endpoint=Chat(), prompts=prompts)
    assert [answer.is_ok for answer in measured.answers] == [False] * 3
    assert len(slow.bodies) == 1 and "before it" in measured.answers[2].error


def test_a_refusal_is_an_error_of_one_request_only() -> None:
    measured = measure(SlowServer(statuses=[503]), [0.0, 0.3])
    refused, fine = measured.answers
    assert "status 503" in refused.error and fine.is_ok
    result = describe(measured, Wishes())
    assert (result["completed"], result["failed"]) == (1, 1)
    assert result["total_output_tokens"] == 4


def test_fields_of_all_requests_are_sent() -> None:
    slow = SlowServer()
    measure(slow, [0.0], temperature=0.0, ignore_eos=True)
    [body] = slow.bodies
    assert body["temperature"] == 0.0 and body["ignore_eos"] is True
    assert (body["prompt"], body["max_tokens"], body["stream"]) == ("a b c", 4, True)


def test_goodput_counts_the_requests_within_all_limits() -> None:
    measured = measure(SlowServer(ttft=0.05, gap=0.03), [0.0, 0.0])
    for limits, good in (
        ({"ttft": 5000}, 2),
        ({"ttft": 40}, 0),
        ({"ttft": 5000, "tpot": 20}, 0),
        ({"tpot": 5000, "e2el": 5000}, 2),
    ):
        result = describe(measured, Wishes(goodput=limits))
        assert result["request_goodput"] * result["duration"] == pytest.approx(good)
