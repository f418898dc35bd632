"""Starts a server to measure, and sends it all requests at once, as a client.

The client uses plain asyncio streams on one thread and measures its own CPU time. It runs on the
same cores as the server, so a heavy client would distort the figures.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads import Request

_NUM_TOKENS = re.compile(rb'"(?:completion_tokens|tokens_predicted)"\s*:\s*(\d+)')
"""The number of tokens in answers of OpenAI's API and llama.cpp's own; the last match counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The figures of one load."""

    seconds: float
    client_cpu_seconds: float


@contextmanager
def server(command: Sequence[str | Path], timeout: float = 120) -> Iterator[int]:
    """A context in which the server runs. Yields its port when /health answers.

    `command` gets the flag `--port`. Its output goes to this process's stderr. Raises RuntimeError
    if the server ends, or does not answer within `timeout` seconds.
    """
    port = _free_port()
    process = subprocess.Popen([*map(str, command), "--port", str(port)], stdout=2)
    try:
        _wait_until_healthy(process, port, timeout)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def run(
    port: int, path: str, requests: Sequence[Request], bodies: Sequence[dict[str, Any]]
) -> Load:
    """Post all bodies at once, and wait for all answers, streamed or not.

    Raises RuntimeError if a request is refused, or its answer has a wrong number of tokens.
    """
    cpu, started = time.process_time(), time.perf_counter()
    answers = asyncio.run(_post_all(port, path, bodies))
    load = Load(seconds=time.perf_counter() - started, client_cpu_seconds=time.process_time() - cpu)
    for request, answer in zip(requests, answers, strict=True):
        made = _NUM_TOKENS.findall(answer)
        if not made or int(made[-1]) != request.max_tokens:
            raise RuntimeError(f"{path}: {request.max_tokens} tokens wanted, got {answer[-500:]!r}")
    return load


def completion_body(model: str, request: Request) -> dict[str, Any]:
    """A body for /v1/completions: streamed, with the number of tokens at the end."""
    return {
        "model": model,
        "prompt": request.prompt_token_ids,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _post_all(port: int, path: str, bodies: Sequence[dict[str, Any]]) -> list[bytes]:
    return await asyncio.gather(*(_post(port, path, body) for body in bodies))


async def _post(port: int, path: str, body: dict[str, Any]) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    with closing(writer):
        writer.write(head.encode() + content)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{path} answered {status!r}: {await reader.read()!r}")
        chunks = []
        while chunk := await reader.read(1 << 16):
            chunks.append(chunk)
    return b"".join(chunks)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, timeout: float) -> None:
    started = time.monotonic()
    while time.monotonic() - started < timeout and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("the server did not start")


def main() -> None:
    """A client for benchmarks/http_overhead.py: one load per line of standard input."""
    port = int(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        requests = [
            Request(prompt_token_ids=prompt, max_tokens=asked["max_tokens"])
            for prompt in asked["prompts"]
        ]
        bodies = [completion_body("model", request) for request in requests]
        load = run(port, "/v1/completions", requests, bodies)
        print(json.dumps({"seconds": load.seconds, "cpu": load.client_cpu_seconds}), flush=True)


if __name__ == "__main__":
    main()
