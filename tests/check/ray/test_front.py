"""What a front does with lost answers: each test plays Serve's proxy, without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray itself
STREAM = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}
EVENT = {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
END = {"type": "http.response.body", "body": b"", "more_body": False}
REFUSED = {"type": "http.response.start", "status": 503, "headers": []}
Messages = list[dict[str, Any]]


def ask(proxy: Any, path: str, body: bytes = b"{}") -> Messages:
    """What the client gets from a front of this proxy."""
    from tokenmill.ray_serve.front import Front

    sent: Messages = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    asyncio.run(Front(proxy)(scope, receive, send))
    return sent


def answers(*lives: Messages, path: str = "/v1/completions", body: bytes = b"{}") -> Messages:
    """What the client gets, when the replicas that are asked send these messages and are lost."""
    left, seen = list(lives), list[bytes]()

    async def proxy(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        assert b"x-session-id" in dict(scope["headers"])
        seen.append((await receive())["body"])
        for message in left.pop(0):
            await send(message)

    sent = ask(proxy, path, body)
    assert not left and set(seen) == {body}
    return sent


@pytest.mark.parametrize("lost", [[], [REFUSED, END]])
def test_a_request_that_has_not_begun_is_sent_once_more(lost: Messages) -> None:
    assert answers(lost, [STREAM, EVENT, END]) == [STREAM, EVENT, END]


def test_a_request_that_was_lost_twice_is_refused() -> None:
    start, end = answers([], [])
    assert start["status"] == 503 and b'"code":"stopped"' in end["body"]
    assert answers([REFUSED, END], [REFUSED, END]) == [REFUSED, END]
    start, end = answers([], [], path="/v1/messages")
    assert start["status"] == 503 and b'"type":"overloaded_error"' in end["body"]


def test_the_second_try_avoids_the_replica_that_refused() -> None:
    asked: list[str] = []

    async def proxy(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        asked.append(dict(scope["headers"])[b"x-session-id"].decode())
        for message in [REFUSED | {"headers": [(b"x-tokenmill-replica", b"one")]}, END]:
            await send(message)

    ask(proxy, "/v1/completions")
    assert asked[1] == "not:one"


def test_metrics_of_another_application_are_passed_on() -> None:
    async def proxy(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"theirs"})

    assert ask(proxy, "/metrics")[1]["body"] == b"theirs"


def test_metrics_do_not_wait_for_a_replica_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenmill.ray_serve import front

    monkeypatch.setattr(front, "METRICS_SECONDS", 0.01)

    async def proxy(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        await asyncio.Event().wait()

    assert ask(proxy, "/metrics")[0]["status"] == 503


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/completions", (b'data: {"error":', b'"code":"stopped"', b"\n\ndata: [DONE]\n\n")),
        ("/v1/messages", (b"event: error\ndata: ", b'"type":"overloaded_error"')),
        ("/v1/responses", (b"event: error\ndata: ", b'"type":"error"', b'"code":"stopped"')),
    ],
)
def test_a_begun_stream_ends_with_the_error_event_of_its_api(
    path: str, words: tuple[bytes, ...]
) -> None:
    *begun, last = answers([STREAM, EVENT], path=path)
    assert begun == [STREAM, EVENT] and not last.get("more_body", False)
    assert last["body"].startswith(words[0]) and all(word in last["body"] for word in words)


def test_a_begun_answer_that_is_no_stream_gets_nothing_added() -> None:
    start = STREAM | {"headers": [(b"content-type", b"application/json")]}
    assert answers([start, EVENT]) == [start, EVENT]
