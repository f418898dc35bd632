"""A client that asks an HTTP server for all requests at once, on one thread, and counts its own CPU.

Plain asyncio streams: on these cores a heavy client would be part of what is measured.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workloads import Request


@dataclass(frozen=True)
class Load:
    """What came of it."""

    seconds: float
    client_cpu_seconds: float


def run(port: int, path: str, bodies: Sequence[dict[str, Any]]) -> Load:
    """Post all bodies at once; returns when all answers, streamed or not, have ended."""
    cpu, started = time.process_time(), time.perf_counter()
    asyncio.run(_post_all(port, path, bodies))
    return Load(time.perf_counter() - started, time.process_time() - cpu)


def completion_body(model: str, request: Request, *, stream: bool) -> dict[str, Any]:
    """Of /v1/completions."""
    return {
        "model": model,
        "prompt": request.prompt_token_ids,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }


async def _post_all(port: int, path: str, bodies: Sequence[dict[str, Any]]) -> None:
    await asyncio.gather(*(_post(port, path, body) for body in bodies))


async def _post(port: int, path: str, body: dict[str, Any]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
        + content
    )
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{path} answered {status!r}: {await reader.read()!r}")
    while await reader.read(1 << 16):
        pass
    writer.close()
