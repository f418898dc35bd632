"""The header Server-Timing of whole answers: its parts are the engine's times, and add up."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tokenmill.core.contract.events import Finished, FinishedRequest
from tokenmill.plugin import hookimpl

from .serving import Served, SteeredExecutor, serve_engine, toy_engine

MESSAGES = [{"role": "user", "content": "abc"}]
ORIGIN = "https://app.example"
CALLS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc", "max_tokens": 6, "n": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 6},
    "/v1/responses": {"input": "abc", "max_output_tokens": 6},
    "/v1/messages": {"model": "simulated", "messages": MESSAGES, "max_tokens": 6},
    "/v1/embeddings": {"input": "abc"},
}
ROUNDING_MS = 0.02
STEP_MS = 3.0


class Statistics:
    """Keeps what the engine says of ended requests."""

    def __init__(self) -> None:
        self.ended: list[FinishedRequest] = []

    @hookimpl
    def on_finished(self, event: Finished) -> None:
        self.ended += event.requests


STATISTICS = Statistics()


@pytest.fixture(scope="module")
def crowded() -> Iterator[Served]:
    """A server whose 10 blocks of 4 tokens are too few for two long requests, so it preempts."""
    executor = SteeredExecutor(num_blocks=10, step_seconds=STEP_MS / 1000)
    engine = toy_engine(executor, extra=[STATISTICS])
    with serve_engine(engine, allowed_origins=(ORIGIN,)) as served:
        yield served


def parts(answer: httpx.Response) -> dict[str, float]:
    """The header's parts in milliseconds."""
    assert answer.status_code == 200, answer.text
    found = re.fullmatch(
        r"queue;dur=(\d+\.\d+), prefill;dur=(\d+\.\d+), decode;dur=(\d+\.\d+)",
        answer.headers["server-timing"],
    )
    assert found, answer.headers["server-timing"]
    return dict(zip(("queue", "prefill", "decode"), map(float, found.groups()), strict=True))


def ask(served: Served, path: str, **fields: Any) -> tuple[dict[str, float], list[FinishedRequest]]:
    """The parts of an answer's time, and the statistics of its requests."""
    STATISTICS.ended.clear()
    with served.client() as http:
        began = time.monotonic()
        times = parts(http.post(path, json=CALLS[path] | fields))
        assert sum(times.values()) <= 1000 * (time.monotonic() - began) + ROUNDING_MS
    served.wait_idle()
    return times, list(STATISTICS.ended)


@pytest.mark.parametrize("path", CALLS)
def test_parts_add_up_to_the_time_that_the_engine_measured(crowded: Served, path: str) -> None:
    times, ended = ask(crowded, path)
    whole = 1000 * max(request.e2e_latency for request in ended)
    assert sum(times.values()) == pytest.approx(whole, abs=ROUNDING_MS)
    assert times["prefill"] >= STEP_MS
    # One step computes the prompt and the first token; embeddings have no token.
    assert times["decode"] >= 5 * STEP_MS or (path == "/v1/embeddings" and times["decode"] == 0)


def test_waiting_after_a_preemption_counts(crowded: Served) -> None:
    times, ended = ask(crowded, "/v1/completions", prompt="abcdefgh", max_tokens=24)
    assert sum(request.num_preemptions for request in ended)
    whole = 1000 * max(request.e2e_latency for request in ended)
    assert sum(times.values()) == pytest.approx(whole, abs=ROUNDING_MS)
    slowest = max(ended, key=lambda request: request.e2e_latency)
    assert times["decode"] > 24 * STEP_MS, slowest


def test_several_prompts_count_from_the_first_arrival_to_the_last_end(crowded: Served) -> None:
    times, ended = ask(crowded, "/v1/completions", prompt=["abcdefgh"] * 3, max_tokens=24, n=1)
    assert len(ended) == 3
    assert sum(times.values()) >= 1000 * max(request.e2e_latency for request in ended) - ROUNDING_MS


def test_a_stop_string_ends_the_last_part(crowded: Served) -> None:
    with crowded.client() as http:
        ask_long = {"prompt": "abc", "max_tokens": 6, "seed": 5}
        text = http.post("/v1/completions", json=ask_long).json()["choices"][0]["text"]
    times, ended = ask(crowded, "/v1/completions", n=1, stop=text[2], seed=5)
    assert ended[0].finish_reason == "stop"
    whole = 1000 * ended[0].e2e_latency
    assert sum(times.values()) == pytest.approx(whole, abs=ROUNDING_MS)


def test_streams_and_refusals_have_no_such_header(http: httpx.Client) -> None:
    for path, body in CALLS.items():
        assert "server-timing" not in http.post(path, json=body | {"model": "none"}).headers
        if path != "/v1/embeddings":
            assert "server-timing" not in http.post(path, json=body | {"stream": True}).headers


def test_pages_of_allowed_origins_may_read_it(crowded: Served, http: httpx.Client) -> None:
    headers = {"Origin": ORIGIN}
    with crowded.client(headers=headers) as cross_origin:
        answer = cross_origin.post("/v1/completions", json={"prompt": "abc", "max_tokens": 1})
    assert answer.headers["timing-allow-origin"] == ORIGIN
    assert "Server-Timing" in answer.headers["access-control-expose-headers"]
    same_origin = http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 1})
    assert "server-timing" in same_origin.headers
    assert "timing-allow-origin" not in same_origin.headers
