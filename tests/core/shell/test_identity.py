"""Ids and options of requests: what streams, events and the executor call a request."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.core.contract.events import Admitted, Finished, FinishedRequest
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.outputs import RequestOutput
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.engine_shell import EngineShell

from .test_engine_shell import PROMPT, in_event_loop, make_engine


async def collect(engine: EngineShell, n: int, **options: Any) -> list[RequestOutput]:
    params = SamplingParams(max_tokens=3, n=n)
    return [o async for o in engine.generate(PROMPT, params, **options)]


@pytest.mark.parametrize("n", [1, 2])
@in_event_loop
async def test_an_id_in_use_gets_a_suffix_and_is_free_again_after_its_request(n: int) -> None:
    params = SamplingParams(max_tokens=100, n=n)

    async with make_engine() as engine:
        streams = [await engine.submit([1], params, request_id="a") for _ in range(3)]
        ids = [stream.request_id for stream in streams]
        assert ids[0] == "a" and all(i.startswith("a-") for i in ids[1:])
        assert len(set(ids)) == 3
        for stream in streams:
            await stream.aclose()
        await engine.drain()
        assert engine.load().kv_cache_usage == 0
    async with make_engine() as engine:
        for _ in range(2):
            (*_, output) = await collect(engine, n=n, request_id="a")
            assert output.request_id == "a"


@in_event_loop
async def test_an_id_that_looks_like_a_choice_of_a_live_request_gets_a_suffix() -> None:
    async with make_engine() as engine:
        await engine.submit([1], SamplingParams(max_tokens=100, n=2), request_id="a")
        other = await engine.submit([1], SamplingParams(max_tokens=100), request_id="a/0/1")
        assert other.request_id.startswith("a/0/1-")


@in_event_loop
async def test_the_prompts_of_a_call_share_an_id_and_are_aborted_by_it() -> None:
    async with make_engine() as engine:
        params = SamplingParams(max_tokens=200, n=2)
        streams = [
            await engine.submit(PROMPT, params, request_id="a", prompt_index=i) for i in range(3)
        ]
        assert {stream.request_id for stream in streams} == {"a"}
        await engine.abort("a")
        for stream in streams:
            outputs = [o async for o in stream]
            assert outputs[-1].finished
        await engine.drain()
        assert engine.load().kv_cache_usage == 0


class Overheard:
    """The events about requests that an observer received."""

    def __init__(self) -> None:
        self.admitted: list[Admitted] = []
        self.finished: list[FinishedRequest] = []

    @hookimpl
    def on_admitted(self, event: Admitted) -> None:
        self.admitted.append(event)

    @hookimpl
    def on_finished(self, event: Finished) -> None:
        self.finished += event.requests


@in_event_loop
async def test_events_show_one_id_and_number_the_choices() -> None:
    overheard = Overheard()
    async with make_engine(plugins=[overheard]) as engine:
        await collect(engine, n=2, request_id="mine", metadata={"tenant": "t"})
    (admitted,) = overheard.admitted
    assert (admitted.request_id, admitted.n) == ("mine", 2)
    assert admitted.options.metadata == {"tenant": "t"}
    assert {(r.request_id, r.options.prompt_index, r.choice_index) for r in overheard.finished} == {
        ("mine", 0, 0),
        ("mine", 0, 1),
    }
    assert len({r.engine_id for r in overheard.finished}) == 2
    assert all(r.options.metadata == {"tenant": "t"} for r in overheard.finished)


@in_event_loop
async def test_an_unknown_option_is_refused_with_a_near_one() -> None:
    async with make_engine() as engine:
        with pytest.raises(InvalidRequestError, match="Did you mean 'metadata'"):
            await engine.submit(PROMPT, metdata={})
