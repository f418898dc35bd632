"""A thousand streams at once: all end, each with its own text, and the server stays responsive.

In float32, where a text does not depend on what else is in its batch.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recording import percentile
from tests.server_process import RunningServer, running_server

from . import watching
from .asking import Asker
from .calling import Answer, Call, Client

NUM_STREAMS = 1000
NUM_ALONE = 25
"""Requests that are also asked alone, to compare."""
NUM_TOKENS = 6
PATIENCE = 1800.0
"""Seconds. The last streams wait for all others."""
MAX_SERVER_MB, MAX_ENGINE_MB = 150.0, 800.0
"""Memory that a thousand streams may need more than none."""
FLAGS = ("--dtype", "float32", "--num-gpu-blocks-override", "1000", "--no-enable-log-requests")
QUEUES = {
    "all of them wait": (),
    "few may wait": ("--max-num-seqs", "32", "--max-num-queued-reqs", "100"),
}


@pytest.mark.parametrize("queue", QUEUES)
def test_a_thousand_streams_end_and_have_their_own_texts(
    queue: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with running_server(tmp_path, *FLAGS, *QUEUES[queue]) as server:
        crowd = Crowd(server)
        asyncio.run(crowd.run())
        assert server.wait_until_empty(60)["kv_cache_usage"] == 0
        assert "kv_blocks_leaked" not in server.log.read_text()
    for name, value in crowd.figures().items():
        record_property(name, value)
    statuses = crowd.statuses()
    assert set(statuses) <= ({200} if queue == "all of them wait" else {200, 503})
    assert statuses[200] >= 100
    for answer in crowd.answers:
        check(answer)
    compared = [(alone, crowd.answers[i]) for i, alone in enumerate(crowd.alone)]
    assert [said(one) for _, one in compared if one.status == 200] == [
        said(alone) for alone, one in compared if one.status == 200
    ]
    assert set(crowd.health) == {200}
    assert crowd.most[0] - crowd.before[0] < MAX_SERVER_MB
    assert crowd.most[1] - crowd.before[1] < MAX_ENGINE_MB


class Crowd:
    """Many clients at once, and what the server needs meanwhile."""

    def __init__(self, server: RunningServer) -> None:
        self.alone: list[Answer] = []
        self.answers: list[Answer] = []
        self.seconds = 0.0
        self.health: Counter[int] = Counter()
        self.health_seconds: list[float] = []
        self._pids = server.process.pid, *watching.children(server.process.pid)
        self.before = self.most = self._memory()
        self._client = Client(server.url, PATIENCE)
        asker = Asker(1, "", max_words=6)
        self._prompts = [asker.text() for _ in range(NUM_STREAMS)]

    async def run(self) -> None:
        for prompt in self._prompts[:NUM_ALONE]:
            self.alone.append(await self._client.ask(call(prompt, "alone")))
        self.before = self.most = self._memory()
        watching_it = asyncio.create_task(self._watch())
        began = time.monotonic()
        calls = [call(prompt, "together") for prompt in self._prompts]
        self.answers = await asyncio.gather(*map(self._client.ask, calls))
        self.seconds = time.monotonic() - began
        watching_it.cancel()

    async def _watch(self) -> None:
        while True:
            began = time.monotonic()
            self.health[(await self._client.get("/health")).status] += 1
            self.health_seconds.append(time.monotonic() - began)
            self.most = tuple(map(max, self.most, self._memory()))
            await asyncio.sleep(0.05)

    def _memory(self) -> tuple[float, ...]:
        return tuple(map(watching.rss, self._pids[:2]))

    def statuses(self) -> Counter[int]:
        return Counter(answer.status for answer in self.answers)

    def figures(self) -> dict[str, object]:
        return {
            "streams": len(self.answers),
            "statuses": dict(self.statuses()),
            "seconds until all had ended": round(self.seconds, 1),
            "compared with an answer alone": sum(
                answer.status == 200 for answer in self.answers[:NUM_ALONE]
            ),
            "/health ms, median": round(1e3 * percentile(self.health_seconds, 0.5), 1),
            "/health ms, p99": round(1e3 * percentile(self.health_seconds, 0.99), 1),
            "RSS of the server in MB, before and at most": rounded(self.before[0], self.most[0]),
            "RSS of the engine in MB, before and at most": rounded(self.before[1], self.most[1]),
        }


def call(prompt: str, salt: str) -> Call:
    """Greedy, with token ids. The salt keeps it out of the others' prefix cache."""
    return Call.of(
        "/v1/completions",
        {
            "prompt": prompt,
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "cache_salt": salt,
        },
    )


def check(answer: Answer) -> None:
    """A stream with each token once and one end, or an error that says what to do."""
    if answer.status != 200:
        assert "try again" in answer.json()["error"]["message"] or answer.json()["error"]["code"]
        return
    choices = choices_of(answer)
    assert len(said(answer)[1]) == NUM_TOKENS
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["length"]
    assert answer.events()[-1]["usage"]["completion_tokens"] == NUM_TOKENS


def said(answer: Answer) -> tuple[str, list[int]]:
    """The text and the token ids of a stream."""
    choices = choices_of(answer)
    token_ids: Sequence[int] = [i for choice in choices for i in choice.get("token_ids") or ()]
    return "".join(choice["text"] for choice in choices), list(token_ids)


def choices_of(answer: Answer) -> list[dict[str, Any]]:
    return [choice for event in answer.events() for choice in event["choices"]]


def rounded(*values: float) -> list[float]:
    return [round(value, 1) for value in values]
