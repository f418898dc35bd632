"""A server that cannot take a request says so with 503 and Retry-After, at once."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tokenmill.api.http.connections import connection

from .serving import Served, SteeredExecutor, serve_engine, toy_engine
from .test_errors import check_error

ASK: dict[str, Any] = {"prompt": "abc", "max_tokens": 4}


def ask_in_thread(served: Served, answers: list[httpx.Response], **fields: Any) -> threading.Thread:
    def ask() -> None:
        with served.client() as http:
            answers.append(http.post("/v1/completions", json=ASK | fields))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


@pytest.fixture
def held() -> Iterator[tuple[Served, SteeredExecutor]]:
    """A server whose device works on one request until the gate opens."""
    executor = SteeredExecutor()
    executor.gate.clear()
    engine = toy_engine(executor, max_num_seqs=1, max_num_queued_reqs=2)
    with serve_engine(engine) as served:
        yield served, executor
        executor.gate.set()


def test_a_full_queue_refuses_and_what_was_accepted_is_answered(
    held: tuple[Served, SteeredExecutor],
) -> None:
    served, executor = held
    answers: list[httpx.Response] = []
    threads = [ask_in_thread(served, answers)]
    served.wait_until(lambda load: load["num_running"] == 1)
    threads += [ask_in_thread(served, answers) for _ in range(2)]
    served.wait_until(lambda load: load["num_waiting"] == 2)
    with served.client() as http:
        refused = http.post("/v1/completions", json=ASK)
        assert check_error(refused, 503)["code"] == "overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        streamed = http.post("/v1/completions", json=ASK | {"stream": True})
        check_error(streamed, 503)
        assert http.get("/health").status_code == 200
    executor.gate.set()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200] * 3
    served.wait_idle()


def test_a_list_of_prompts_of_which_one_does_not_fit_queues_none(
    held: tuple[Served, SteeredExecutor],
) -> None:
    served, executor = held
    with served.client() as http:
        check_error(http.post("/v1/completions", json=ASK | {"prompt": ["a"] * 3}), 503)
        assert http.get("/load").json()["num_waiting"] == 0
        executor.gate.set()
        served.wait_idle()


def test_a_draining_server_finishes_and_refuses(held: tuple[Served, SteeredExecutor]) -> None:
    served, executor = held
    answers: list[httpx.Response] = []
    thread = ask_in_thread(served, answers)
    served.wait_until(lambda load: load["num_running"] == 1)

    async def start_drain() -> asyncio.Task[None]:
        return asyncio.create_task(served.engine.drain())

    draining = served.run(start_drain())
    served.wait_until(lambda load: load["is_draining"])
    with served.client() as http:
        refused = http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]}
        )
        check_error(refused, 503)
        assert int(refused.headers["retry-after"]) >= 1
        check_error(http.get("/ready"), 503)
        assert http.get("/health").status_code == 200
    executor.gate.set()
    thread.join()
    assert answers[0].status_code == 200
    assert answers[0].json()["choices"][0]["finish_reason"] == "length"

    async def wait() -> None:
        await draining

    served.run(wait())


def talk(served: Served, raw: bytes) -> bytes:
    """Everything that the server answers until it hangs up."""
    target = urlsplit(served.url)
    answer = b""
    with socket.create_connection((target.hostname or "", target.port or 0), timeout=20) as sock:
        sock.sendall(raw)
        while piece := sock.recv(65536):
            answer += piece
    return answer


START = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
TWO_LENGTHS = b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x00", b"400"),
        (START + b"X: " + b"a" * 40_000, b"431"),
        (START + b"X: " + b"a" * 20_000 + b"\r\n\r\n", b"431"),
        (START + b"X: y\r\n" * 3000 + b"\r\n", b"431"),
        (START.replace(b"/health", b"/" + b"a" * 20_000) + b"\r\n", b"431"),
        (START + TWO_LENGTHS, b"400"),
    ],
    ids=["not HTTP", "TLS", "no end", "one header", "many headers", "a path", "two lengths"],
)
def test_what_is_not_good_http_is_refused_in_the_usual_shape(
    toy: Served, raw: bytes, status: bytes
) -> None:
    head, _, body = talk(toy, raw).partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == status
    assert b"connection: close" in head.lower()
    assert body.startswith(b'{"error":{"message":')


def test_a_client_that_never_ends_its_headers_or_body_is_hung_up_on(
    toy: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr("tokenmill.api.serving.reading.request_reading.BODY_SECONDS", 0.2)
    assert talk(toy, b"") == b""
    assert talk(toy, b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ") == b""
    head = (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: 100\r\n\r\n{"
    )
    assert b" 408 " in talk(toy, head)
