"""Clients that connect and send nothing, or half a request, keep nobody else out."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tokenmill.api import server
from tokenmill.api.http.connections.room import REFUSED_AT_ONCE, Room

from ..server_process import running_server
from .serving import PATIENCE, SteeredExecutor, serve_engine, toy_engine
from .test_errors import check_error

ROOT = Path(__file__).resolve().parents[2]
JSON = "Content-Type: application/json"


def connect(url: str) -> socket.socket:
    target = urlsplit(url)
    return socket.create_connection((target.hostname or "", target.port or 0), timeout=PATIENCE)


def test_new_clients_are_served_while_silent_ones_need_more_descriptors_than_there_are(
    tmp_path: Path,
) -> None:
    program = ("tests.api.toy_server", "64")
    with running_server(tmp_path, packages=ROOT, program=program) as found:
        with contextlib.ExitStack() as stack:
            for n in range(150):
                stack.enter_context(connect(found.url))
                if n % 50 == 0:
                    assert httpx.get(f"{found.url}/health", trust_env=False).status_code == 200
            answer = httpx.get(f"{found.url}/health", trust_env=False, timeout=PATIENCE)
            assert answer.status_code == 200
        assert found.log.stat().st_size < 10_000, found.log.read_text()[:10_000]


def with_room(monkeypatch: pytest.MonkeyPatch, num_connections: int) -> None:
    """Let the next server have room for `num_connections`."""
    monkeypatch.setattr(server, "max_connections", lambda: num_connections)


def test_the_oldest_silent_connection_is_closed_and_one_in_use_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_room(monkeypatch, 2)
    with serve_engine(toy_engine()) as served, served.client() as used:
        assert used.get("/health").status_code == 200
        with connect(served.url) as first, connect(served.url) as second:
            assert first.recv(1) == b"", "it was closed for the second one"
            assert used.get("/health").status_code == 200, "on the same connection"
            second.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert second.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("end", ["Content-Length: 9", "Transfer-Encoding: chunked"])
def test_clients_that_send_half_a_body_keep_nobody_out(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    half = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n{end}\r\n\r\n"
    with_room(monkeypatch, 2)
    with serve_engine(toy_engine()) as served, connect(served.url) as first:
        first.sendall(half.encode())
        with connect(served.url) as second, served.client() as new:
            second.sendall(half.encode())
            assert new.get("/health").status_code == 200
            assert first.recv(1) == b"", "it was closed for the new one"


def test_a_connection_that_answers_a_pipelined_request_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = b'{"prompt": "abc", "max_tokens": 5}'
    ask = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n".encode()
    ask += b"Content-Length: %d\r\n\r\n" % len(body) + body
    with_room(monkeypatch, 1)
    executor = SteeredExecutor()
    executor.gate.clear()
    with serve_engine(toy_engine(executor)) as served, connect(served.url) as used:
        used.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + ask)
        assert used.recv(12) == b"HTTP/1.1 200"
        with served.client() as new:
            refused = new.get("/health").status_code
        executor.gate.set()
        assert refused == 503
        answer = b""
        while b"text_completion" not in answer:
            received = used.recv(4096)
            assert received, answer
            answer += received


def test_a_connection_between_two_requests_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with_room(monkeypatch, 1)
    with serve_engine(toy_engine()) as served, served.client() as idle:
        assert idle.get("/health").status_code == 200
        with served.client() as new:
            assert new.get("/health").status_code == 200


class Caller:
    """A connection of which only the end matters."""

    is_open = True

    def hang_up(self) -> None:
        self.is_open = False


def test_the_connection_that_has_been_silent_longest_makes_room() -> None:
    room, callers = Room(2), [Caller() for _ in range(4)]
    assert all(map(room.enter, callers))
    assert [caller.is_open for caller in callers] == [False, False, True, True]


def test_a_full_room_refuses_some_and_closes_the_rest() -> None:
    room = Room(1)
    busy = Caller()
    assert room.enter(busy)
    room.begin_answer(busy)
    refused = [Caller() for _ in range(REFUSED_AT_ONCE + 1)]
    for caller in refused:
        assert not room.enter(caller)
        room.begin_answer(caller)
    assert [caller.is_open for caller in refused] == [True] * REFUSED_AT_ONCE + [False]
    assert busy.is_open
    for caller in refused:
        room.leave(caller)
    room.end_answer(busy)
    assert room.enter(Caller()), "in place of the idle one"
    assert not busy.is_open


def test_too_many_connections_are_refused_in_the_usual_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_room(monkeypatch, 0)
    with serve_engine(toy_engine()) as served, served.client() as http:
        refused = http.get("/health")
    assert check_error(refused, 503)["code"] == "overloaded"
    assert refused.headers["connection"] == "close"
