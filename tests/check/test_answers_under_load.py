"""GET /health and /metrics are answered between a few tokens of many running streams.

Tokens of a stream are the clock, so a slow machine changes nothing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.server_process import RunningServer, running_server

NUM_STREAMS = 48
NUM_TOKENS = 3000
NUM_QUESTIONS = 40
MAX_TOKENS_BETWEEN = 20
"""A step of the server takes 5 ms or more, so 20 tokens take 100 ms or more."""
PATIENCE = 120.0


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_it_is_answered_before_a_stream_has_twenty_more_tokens(tmp_path: Path, path: str) -> None:
    room = ("--num-gpu-blocks-override", str(NUM_STREAMS * NUM_TOKENS // 2))
    program = ("tests.api.toy_serve",)
    with running_server(tmp_path, *room, program=program) as server:
        between = asyncio.run(ask_under_load(server, path))
    assert len(between) == NUM_QUESTIONS
    assert sorted(between)[NUM_QUESTIONS * 9 // 10] <= MAX_TOKENS_BETWEEN, between


async def ask_under_load(server: RunningServer, path: str) -> list[int]:
    """For each question, the tokens that one stream got until it was answered."""
    async with httpx.AsyncClient(
        base_url=server.url, timeout=PATIENCE, trust_env=False, limits=httpx.Limits()
    ) as client:
        streams = [Stream() for _ in range(NUM_STREAMS)]
        reading = [asyncio.create_task(stream.read(client)) for stream in streams]
        for stream in streams:
            await stream.has_begun.wait()
        watched, between = streams[0], []
        for _ in range(NUM_QUESTIONS):
            before = watched.num_tokens
            answer = await client.get(path)
            assert answer.status_code == 200
            between.append(watched.num_tokens - before)
        assert not any(one.done() for one in reading), "all streams were running"
        for one in reading:
            one.cancel()
        await asyncio.wait(reading)
        return between


class Stream:
    """A stream that is read as it comes, and its number of tokens so far."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.has_begun = asyncio.Event()

    async def read(self, client: httpx.AsyncClient) -> None:
        body = {"prompt": "abc", "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for chunk in answer.aiter_raw():
                self.num_tokens += chunk.count(b"data: {")
                self.has_begun.set()
