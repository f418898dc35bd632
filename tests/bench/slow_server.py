"""A server that answers with planned delays, with which measured times are compared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class SlowServer:
    """Sends the first token after `ttft` seconds, and the others `gap` seconds apart."""

    ttft: float = 0.05
    gap: float = 0.02
    statuses: Sequence[int] = ()
    """Statuses of the first requests; all others are 200."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    num_running: int = 0
    most_running: int = 0
    url: str = ""

    @asynccontextmanager
    async def running_(self) -> AsyncIterator[SlowServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                text = head.decode()
                length = int(text.lower().partition("content-length: ")[2].split("\r")[0] or 0)
                body = json.loads(await reader.readexactly(length)) if length else {}
                await self._answer(text, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if head.startswith("GET /v1/models"):
            return self._whole(writer, 200, {"data": [{"id": "slow"}]})
        if "/tokenize" in head:
            return self._whole(writer, 200, {"count": len(body["prompt"].split())})
        self.headers.append(head)
        self.bodies.append(body)
        if len(self.bodies) <= len(self.statuses) and self.statuses[len(self.bodies) - 1] != 200:
            return self._whole(writer, self.statuses[len(self.bodies) - 1], {"error": "planned"})
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        await self._stream(body, writer)
        self.num_running -= 1
        return None

    async def _stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        count = body.get("max_tokens") or body["max_completion_tokens"]
        for index in range(count):
            await asyncio.sleep(self.gap if index else self.ttft)
            piece = f"t{index} "
            choice = {"text": piece, "delta": {"content": piece}}
            self._event(writer, {"choices": [choice]})
        usage = {"prompt_tokens": 7, "completion_tokens": count}
        self._event(writer, {"choices": [], "usage": usage})
        self._chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    def _event(self, writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        self._chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _whole(self, writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
