"""The event loop never works long for one request, whatever its body has."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

import httpx

from tokenmill.api.serving.reading.body_sizes import MAX_OBJECTS, MAX_STRINGS

from .large_bodies import chat_tool, in_object, large_bodies
from .loop_time import LoopTime
from .serving import PATIENCE, Served
from .test_errors import check_error

LONGEST = 0.02
"""Seconds of CPU time. Most bodies take a tenth of it."""
JSON = {"content-type": "application/json"}
CHAT = "/v1/chat/completions"


def longest_of(
    served: Served, bodies: Iterable[tuple[str, str, bytes, int]], headers: Mapping[str, str]
) -> dict[str, float]:
    """By name, the longest time in seconds that a body blocks the event loop. `bodies`: name, path,
    bytes and expected status; 0: 200 or 400."""
    found: dict[str, float] = {}
    with served.client(headers=dict(headers)) as http:
        for name, path, body, status in bodies:
            http.post(path, content=body[:1000])  # what is imported for the first one
            with LoopTime(served) as loop_time:
                answer = http.post(path, content=body)
            assert answer.status_code in ((status,) if status else (200, 400)), answer.text
            found[name] = loop_time.longest
    return found


def longest_callbacks(served: Served, every: int) -> dict[str, float]:
    """By name, the longest time in seconds that a hostile body blocks the event loop."""
    return longest_of(served, ((*body, 0) for body in large_bodies(every)), {})


def test_large_bodies_do_not_hold_up_the_event_loop(toy: Served) -> None:
    found = longest_callbacks(toy, every=5)
    assert {name: seconds for name, seconds in found.items() if seconds > LONGEST} == {}


def test_a_body_in_chunks_of_one_byte_does_not_hold_up_the_event_loop(toy: Served) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunks = b"1\r\n \r\n" * 40_000 + b"0\r\n\r\n"
    target = urlsplit(toy.url)
    with (
        LoopTime(toy) as loop_time,
        socket.create_connection((target.hostname or "", target.port or 0), PATIENCE) as client,
    ):
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert client.recv(12) == b"HTTP/1.1 400"
    assert loop_time.longest < loop_time.total / 15, "parsed in one turn, or in a few"


def test_what_takes_long_in_one_callback_is_noticed(toy: Served) -> None:
    def work() -> None:
        sum(range(3_000_000))

    with LoopTime(toy) as loop_time:
        toy.loop.call_soon_threadsafe(work)
    assert loop_time.longest > LONGEST


def test_tools_that_are_too_large_are_refused_before_they_are_decoded(http: httpx.Client) -> None:
    tools = chat_tool(in_object(size=600_000))
    body = f'{{"messages": [{{"role": "user", "content": "a"}}], "tools": {tools}}}'
    error = check_error(http.post(CHAT, content=body, headers=JSON), 400)
    assert error["param"] == "tools"
    assert "524288 bytes" in error["message"]


def test_fields_that_are_too_large_together_are_refused(http: httpx.Client) -> None:
    large = {f"a{n}": [] for n in range(18_000)}
    fields = ("metadata", "logit_bias", "response_format", "guided_json", "structured_outputs")
    body = {"prompt": "a"} | dict.fromkeys(fields, large)
    error = check_error(http.post("/v1/completions", content=json.dumps(body), headers=JSON), 400)
    assert "together" in error["message"]


def test_a_text_may_have_as_many_brackets_and_quotes_as_it_likes(http: httpx.Client) -> None:
    text = '[{"a": "\\\\"}]\\' * (MAX_OBJECTS // 2 + MAX_STRINGS // 2)
    error = check_error(http.post("/v1/completions", json={"prompt": text}), 400)
    assert "characters" in error["message"], "it is read, and found to be too long for the model"
