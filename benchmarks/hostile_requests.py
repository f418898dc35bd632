"""Measures how fast a server answers hostile requests, and /health meanwhile.

A server with its engine in a process of its own gets every body of tests/api/hostile_corpus.py in
each round, eight at a time. Another process asks for /health every 5 ms, before the bodies come and
while they do, and one stream of tokens is read through the whole run. The clients share the
machine's cores with the server.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
from recording import make_parser, percentile, record
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks/cpu/peers")]

from http_load import server  # noqa: E402

from tests.api.hostile_corpus import JSON, corpus  # noqa: E402

PAUSE = 0.005
QUIET_SECONDS = 3.0
AT_ONCE = 8
TIMEOUT = 60.0


def watch_health(url: str, pipe: Connection) -> None:
    """Ask for /health until the other side sends something; sends back milliseconds of each."""
    found: list[float] = []
    with httpx.Client(base_url=url, trust_env=False, timeout=TIMEOUT) as http:
        while not pipe.poll(PAUSE):
            begun = time.perf_counter()
            http.get("/health").raise_for_status()
            found.append((time.perf_counter() - begun) * 1e3)
    pipe.send(found)


class HealthWatch:
    """A process that asks for /health, so that the other clients' work does not delay it."""

    def __init__(self, url: str) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=watch_health, args=(url, theirs), daemon=True)
        self._process.start()

    def end(self) -> list[float]:
        """Milliseconds of all answers so far."""
        self._pipe.send(None)
        found: list[float] = self._pipe.recv()
        self._process.join()
        return found


async def post_all(http: httpx.AsyncClient, rounds: int) -> tuple[list[float], dict[int, int]]:
    """Milliseconds of each answer, and how often each status came."""
    slots = asyncio.Semaphore(AT_ONCE)
    times: list[float] = []
    statuses: dict[int, int] = {}

    async def post(path: str, body: bytes) -> None:
        async with slots:
            begun = time.perf_counter()
            answer = await http.post(path, content=body, headers=JSON)
        times.append((time.perf_counter() - begun) * 1e3)
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1

    for _ in tqdm(range(rounds), desc="rounds", disable=None):
        await asyncio.gather(*(post(path, body) for _, path, body in corpus()))
    return times, statuses


async def read_stream(http: httpx.AsyncClient) -> None:
    """Read streams until cancelled, so that the engine always has work."""
    body = {"prompt": "Once", "max_tokens": 512, "ignore_eos": True, "stream": True}
    while True:
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            async for _ in answer.aiter_raw():
                pass


async def measure(url: str, rounds: int) -> dict[str, object]:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=TIMEOUT) as http:
        reading = asyncio.create_task(read_stream(http))
        watch = HealthWatch(url)
        await asyncio.sleep(QUIET_SECONDS)
        before = await asyncio.to_thread(watch.end)
        watch = HealthWatch(url)
        times, statuses = await post_all(http, rounds)
        during = await asyncio.to_thread(watch.end)
        reading.cancel()
    return {
        "num_requests": len(times),
        "statuses": dict(sorted(statuses.items())),
        "answer_ms": describe(times),
        "health_ms_before": describe(before),
        "health_ms_during": describe(during),
    }


def describe(times: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(percentile(times, 0.5), 2),
        "p99": round(percentile(times, 0.99), 2),
        "highest": round(max(times), 2),
        "number": len(times),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", help="directory or .gguf file; None: the default model")
    parser.add_argument("--rounds", type=int, default=3, help="times that each body is sent")
    args = parser.parse_args()
    command = [sys.executable, "-m", "tokenmill", "serve", "--log-level", "error"]
    command += ["--model", args.model] if args.model else []
    with server(command) as port:
        found = asyncio.run(measure(f"http://127.0.0.1:{port}", args.rounds))
    print(json.dumps(found, indent=2))
    record(args, "hostile_requests", found)


if __name__ == "__main__":
    main()
