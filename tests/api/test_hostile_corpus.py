"""Hostile requests: each one is answered, none with a 5xx, and nothing is held afterwards."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from .hostile_corpus import ANSWERED, JSON, RAW, corpus
from .serving import PATIENCE, Served, serve_engine, toy_engine


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_engine(toy_engine()) as served:
        yield served
        served.wait_idle()


def test_the_corpus_has_at_least_250_requests() -> None:
    assert len({body for _, _, body in corpus()}) + len(RAW) >= 250


def test_each_hostile_body_is_answered_and_no_block_stays_held(served: Served) -> None:
    wrong: list[str] = []

    async def ask(http: httpx.AsyncClient, slots: asyncio.Semaphore, *case: Any) -> None:
        name, path, body = case
        async with slots:
            answer = await http.post(path, content=body, headers=JSON)
        if (
            not 200 <= answer.status_code < 500
            or answer.headers.get("content-type") != JSON["content-type"]
        ):
            wrong.append(f"{name}: {answer.status_code} {answer.text[:200]}")

    async def main() -> None:
        slots = asyncio.Semaphore(8)
        async with httpx.AsyncClient(
            base_url=served.url, timeout=PATIENCE, trust_env=False
        ) as http:
            await asyncio.gather(*(ask(http, slots, *case) for case in corpus()))

    asyncio.run(main())
    assert wrong == []
    served.wait_idle()
    assert served.engine.load().is_alive


@pytest.mark.parametrize("name", RAW)
def test_each_hostile_head_is_answered(served: Served, name: str) -> None:
    target = urlsplit(served.url)
    with socket.create_connection((target.hostname or "", target.port or 0), PATIENCE) as sock:
        sock.sendall(RAW[name])
        sock.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    version, status, *_ = answer.split(b" ") if answer else (b"hung up", b"0")
    assert (version, int(status)) == (b"HTTP/1.1", ANSWERED.get(name, 400))
    served.wait_idle()
