"""One id through the whole path: the answer and its header, the log, and plugins."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from tokenmill.api.http.connections import connection
from tokenmill.api.http.request_id import TrackRequests
from tokenmill.core.contract.events import Finished
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.log import JsonFormatter
from tokenmill.core.requests.request_options import MAX_CLIENT_ID
from tokenmill.plugin import Load, RequestView, get_logger

from .serving import PATIENCE, Served, SteeredExecutor, serve_engine, toy_engine

ASK: dict[str, Any] = {"prompt": "abc", "max_tokens": 2}


class Talkative:
    """A plugin that logs what it sees."""

    @hookimpl
    def admit(self, request: RequestView, load: Load) -> None:
        get_logger("acme").info("asked", seen=request.request_id)

    @hookimpl
    def on_finished(self, event: Finished) -> None:
        get_logger("acme").info("finished", request_id=event.requests[0].request_id)


@pytest.fixture
def executor() -> SteeredExecutor:
    return SteeredExecutor()


@pytest.fixture
def served(executor: SteeredExecutor) -> Iterator[Served]:
    with serve_engine(toy_engine(executor, extra=[Talkative()]), log_requests=True) as running:
        yield running


@pytest.fixture
def output() -> Iterator[StringIO]:
    handler = logging.StreamHandler(stream := StringIO())
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("tokenmill")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(level)


def ask(
    served: Served, output: StringIO, body: dict[str, Any] = ASK, **headers: str
) -> tuple[httpx.Response, list[Any]]:
    """An answer, and the events that were logged for it."""
    output.truncate(output.seek(0))
    with served.client(headers=headers) as http:
        answer = http.post("/v1/completions", json=body)
    served.wait_idle()
    wait_for(lambda: bool(requests_of(events_in(output))))
    return answer, events_in(output)


def events_in(output: StringIO) -> list[Any]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


def requests_of(events: list[Any]) -> list[Any]:
    return [one for one in events if one["event"] == "request"]


def wait_for(is_reached: Callable[[], bool]) -> None:
    """The event of a request comes after the end of its answer."""
    end = time.monotonic() + PATIENCE
    while not is_reached():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("given", [None, "abc-1"])
def test_the_id_of_an_answer_is_in_every_log_line_of_its_request(
    served: Served, output: StringIO, given: str | None
) -> None:
    answer, events = ask(served, output, **({"X-Request-Id": given} if given else {}))
    found = answer.json()["id"]
    assert answer.headers["x-request-id"] == (given or found)
    assert found.startswith("cmpl-") and found.endswith(given or found)
    assert {one["event"] for one in events} == {"asked", "finished", "request"}
    assert {one["request_id"] for one in events} == {found}
    [asked] = [one for one in events if one["event"] == "asked"]
    assert asked["seen"] == found
    [done] = [one for one in events if one["event"] == "request"]
    assert (done["method"], done["path"], done["status"]) == ("POST", "/v1/completions", 200)
    assert (done["prompt_tokens"], done["completion_tokens"]) == (3, 2)
    assert done["seconds"] >= done["ttft"] > 0 and done["tokens_per_second"] > 0


def test_the_tokens_of_all_prompts_choices_and_chunks_are_counted(
    served: Served, output: StringIO
) -> None:
    several = {"prompt": ["abc", "de"], "n": 2, "max_tokens": 3, "ignore_eos": True}
    for stream in (False, True):
        [done] = requests_of(ask(served, output, body=several | {"stream": stream})[1])
        assert (done["status"], done["prompt_tokens"], done["completion_tokens"]) == (200, 5, 12)


def test_a_refusal_is_logged_with_its_reason_and_routine_requests_only_for_debugging(
    served: Served, output: StringIO
) -> None:
    answer, events = ask(served, output, body=ASK | {"max_tokens": -1})
    [done] = requests_of(events)
    assert (answer.status_code, done["status"]) == (400, 400)
    assert done["error"] == answer.json()["error"]["message"]
    assert "prompt_tokens" not in done
    with served.client() as http:
        assert http.get("/health").status_code == 200
        assert http.get("/nowhere").status_code == 404

    def paths() -> set[str]:
        return {one["path"] for one in requests_of(events_in(output))}

    wait_for(lambda: "/nowhere" in paths())
    assert not {"/health", "/load"} & paths()


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_is_not_complete_is_logged_with_the_reason(
    served: Served, output: StringIO, executor: SteeredExecutor, stream: bool
) -> None:
    executor.step_seconds = 0.01
    with served.client() as http, pytest.raises(httpx.TimeoutException):
        executor.gate.clear()
        body = ASK | {"max_tokens": 500, "stream": stream}
        http.post("/v1/completions", json=body, timeout=0.2)
    executor.gate.set()
    served.wait_idle()
    wait_for(lambda: bool(requests_of(events_in(output))))
    [done] = requests_of(events_in(output))
    assert (done["status"], done["error"]) == (499, "the client closed the connection")


def test_a_client_that_reads_nothing_is_logged_as_such(
    output: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STALL_SECONDS", 0.2)
    engine = toy_engine(SteeredExecutor(num_blocks=8192), max_model_len=4096)
    body = ASK | {"n": 32, "max_tokens": 3000, "logprobs": 20, "stream": True}
    with serve_engine(engine, log_requests=True) as large, large.client() as http:
        with http.stream("POST", "/v1/completions", json=body):
            wait_for(lambda: bool(requests_of(events_in(output))))
        large.wait_idle()
    [done] = requests_of(events_in(output))
    assert (done["status"], done["error"]) == (499, "the client read nothing for 0.2 s")


def test_an_answer_that_the_end_of_the_server_cuts_off_is_logged_as_such(output: StringIO) -> None:
    async def cut_off(scope: Scope, receive: Receive, send: Send) -> None:
        raise asyncio.CancelledError

    async def nothing(*args: object) -> Any: ...

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(TrackRequests(cut_off, logs=True)(scope, nothing, nothing))
    [done] = requests_of(events_in(output))
    assert (done["status"], done["error"]) == (499, "the server stopped")


def test_a_client_that_leaves_a_stream_is_logged_as_such(
    served: Served, output: StringIO, executor: SteeredExecutor
) -> None:
    executor.step_seconds = 0.01
    with (
        served.client() as http,
        http.stream("POST", "/v1/completions", json=ASK | {"max_tokens": 500, "stream": True}) as s,
    ):
        next(s.iter_raw())
    served.wait_idle()
    wait_for(lambda: bool(requests_of(events_in(output))))
    [done] = requests_of(events_in(output))
    assert (done["status"], done["prompt_tokens"]) == (499, 3)
    assert 0 < done["completion_tokens"] < 500


def test_a_stream_that_fails_is_logged_with_its_reason(
    served: Served, output: StringIO, executor: SteeredExecutor
) -> None:
    executor.failure = RuntimeError("planted")
    [done] = requests_of(ask(served, output, body=ASK | {"stream": True})[1])
    assert done["status"] == 200 and "failed" in done["error"]


def test_a_request_that_the_engine_fails_is_named_by_engine_and_api(
    served: Served, output: StringIO, executor: SteeredExecutor
) -> None:
    executor.failure = RuntimeError("planted")
    answer, events = ask(served, output, **{"X-Request-Id": "lost"})
    assert answer.status_code == 500
    named = {one["event"]: one.get("request_id") for one in events}
    assert named["request_failed"] == named["request"] == "cmpl-lost"
    [failed] = [one for one in events if one["event"] == "step_failed"]
    assert failed["engine_ids"] == ["cmpl-lost"] and "planted" in failed["exception"]


def test_a_long_id_of_a_client_is_cut(served: Served, output: StringIO) -> None:
    answer, _ = ask(served, output, **{"X-Request-Id": "a" * (MAX_CLIENT_ID + 1)})
    assert answer.headers["x-request-id"] == "a" * MAX_CLIENT_ID


def test_two_requests_without_an_id_get_different_ones(served: Served, output: StringIO) -> None:
    ids = {ask(served, output)[0].headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2


@pytest.mark.parametrize("odd", ["a\nb: c", "ü/日", "\x00", "a%0Ab"])
def test_an_odd_id_in_the_body_is_quoted_in_the_header(served: Served, odd: str) -> None:
    with served.client() as http:
        answer = http.post("/v1/completions", json=ASK | {"request_id": odd})
    assert answer.status_code == 200 and answer.json()["id"] == f"cmpl-{odd}"
    header = answer.headers["x-request-id"]
    assert header.startswith("cmpl-") and header.isascii() and header.isprintable()
