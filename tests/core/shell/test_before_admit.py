"""Plugins may wait for other machines before `admit`, and nobody else waits with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tokenmill.core.contract.events import PluginFailed
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.policy import Arrival, Refusal
from tokenmill.core.errors import EngineStoppedError, OverloadedError, RequestFailedError
from tokenmill.core.host.calling import preparing
from tokenmill.core.requests.sampling_params import SamplingParams

from .test_engine_shell import PROMPT, collect, in_event_loop, make_engine

SHORT = SamplingParams(max_tokens=3)


class Asking:
    """Asks about requests of the user "slow", and refuses what the answer does not allow."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()
        self.allowed: set[str] = set()
        self.arrivals: list[Arrival] = []
        self.decided: list[str | None] = []
        self.num_cancelled = 0

    @hookimpl
    def before_admit(self, arrival: Arrival) -> Awaitable[None] | None:
        self.arrivals.append(arrival)
        return self.ask() if arrival.options.user == "slow" else None

    async def ask(self) -> None:
        self.asked.set()
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        self.allowed.add("slow")

    @hookimpl
    def admit(self, request: Any) -> Refusal | None:
        self.decided.append(request.options.user)
        if request.options.user not in (None, *self.allowed):
            return Refusal(reason="not allowed")
        return None


@in_event_loop
async def test_a_request_waits_for_its_answer_while_others_are_served() -> None:
    asking = Asking()
    async with make_engine(plugins=[asking]) as engine:
        slow = asyncio.ensure_future(engine.submit(PROMPT, SHORT, user="slow"))
        await asking.asked.wait()
        assert (await collect(engine, max_tokens=3))[-1].finished
        assert asking.decided == [None]
        asking.answer.set()
        stream = await slow
        assert [output async for output in stream][-1].finished
        assert asking.decided == [None, "slow"]


@in_event_loop
async def test_the_plugin_sees_what_arrives() -> None:
    asking = Asking()
    async with make_engine(plugins=[asking]) as engine:
        params = SamplingParams(max_tokens=3, n=2)
        await (await engine.submit([5, 6, 7], params, api_key_id="key")).aclose()
    [arrival] = asking.arrivals
    assert (arrival.prompt_token_ids, arrival.max_tokens, arrival.n) == ((5, 6, 7), 3, 2)
    assert arrival.options.api_key_id == "key"


@in_event_loop
async def test_a_sender_that_leaves_cancels_the_wait_and_is_not_admitted() -> None:
    asking = Asking()
    async with make_engine(plugins=[asking]) as engine:
        slow = asyncio.ensure_future(engine.submit(PROMPT, SHORT, user="slow"))
        await asking.asked.wait()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert asking.num_cancelled == 1 and not asking.decided


@in_event_loop
async def test_an_engine_that_drains_admits_nothing_that_still_waits() -> None:
    asking = Asking()
    async with make_engine(plugins=[asking]) as engine:
        slow = asyncio.ensure_future(engine.submit(PROMPT, SHORT, user="slow"))
        await asking.asked.wait()
        await engine.drain()
        asking.answer.set()
        with pytest.raises((EngineStoppedError, OverloadedError)):
            await slow
        assert not asking.decided


class Failing:
    """Answers what its function says, and remembers failures."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer
        self.failures: list[PluginFailed] = []

    @hookimpl
    def before_admit(self, arrival: Arrival) -> Any:
        return self.answer() if arrival.options.user == "bad" else None

    @hookimpl
    def on_plugin_failed(self, event: PluginFailed) -> None:
        self.failures.append(event)


def fail() -> None:
    raise ValueError("planted")


async def fail_later() -> None:
    await asyncio.sleep(0)
    raise ValueError("planted")


async def cancel_itself() -> None:
    raise asyncio.CancelledError


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (fail, "ValueError: planted"),
        (fail_later, "ValueError: planted"),
        (cancel_itself, "CancelledError"),
        (wait_for_ever, "the wait took longer than 0.05 seconds"),
        (lambda: True, "the answer must be None or an awaitable, got True"),
    ],
)
@in_event_loop
async def test_a_plugin_that_fails_costs_only_that_request(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[], Any], error: str
) -> None:
    monkeypatch.setattr(preparing, "WAIT_SECONDS", 0.05)
    failing = Failing(answer)
    async with make_engine(plugins=[failing]) as engine:
        for count in range(1, 6):
            with pytest.raises(RequestFailedError, match="plugin 'Failing' failed"):
                await engine.submit(PROMPT, SHORT, user="bad")
            assert len(failing.failures) == count, "it is never taken out"
        assert (await collect(engine, max_tokens=3))[-1].finished
    [last] = failing.failures[-1:]
    assert (last.hook, last.action) == ("before_admit", "request failed")
    assert error in last.error
