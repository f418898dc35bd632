"""A client on plain sockets: it can leave or stop reading at any moment, and costs little."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 180.0
"""Seconds."""
SMALL_WINDOW = 4096
"""Bytes that a stalled reader's socket takes."""
ENDS: dict[str, tuple[bytes, ...]] = {
    "/v1/responses": (
        b"event: response.completed",
        b"event: response.incomplete",
        b"event: response.failed",
    ),
    "/v1/messages": (b"event: message_stop", b"event: error"),
}
"""The last events of streams. Of other paths it is [DONE]."""
ERRORS = (b'data: {"error"', b"event: error")


class NoAnswerError(Exception):
    """The server hung up, or sent something that is no whole answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request of a client."""

    path: str
    body: bytes
    content_type: str = "application/json"
    is_streamed: bool = False
    statuses: frozenset[int] = frozenset({200})
    """The statuses that are right while the engine runs."""

    @classmethod
    def of(cls, path: str, body: dict[str, Any], *statuses: int) -> Call:
        return cls(
            path=path,
            body=json.dumps(body).encode(),
            is_streamed=bool(body.get("stream")),
            statuses=frozenset(statuses or (200,)),
        )

    def __str__(self) -> str:
        return f"{self.path} {self.body[:600]!r}"

    def request(self, host: str) -> bytes:
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
            f"Content-Type: {self.content_type}\r\nContent-Length: {len(self.body)}\r\n\r\n"
        ).encode() + self.body


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    body: bytes

    @property
    def is_error_event(self) -> bool:
        return self.status == 200 and any(error in self.body for error in ERRORS)

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The data of a stream's events without [DONE]."""
        lines = self.body.decode().split("\n")  # splitlines also splits within texts
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(one) for one in data if one != "[DONE]"]


class Client:
    """Sends calls to one server, each on a connection of its own."""

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        """An answer that has not ended after `patience` seconds counts as missing."""
        self._patience = patience
        target = urlsplit(url)
        self._host, self._port = target.hostname or "", target.port or 0

    async def ask(self, call: Call) -> Answer:
        """The whole answer. Raises NoAnswerError."""
        try:
            async with asyncio.timeout(self._patience):
                raw = await self._read_all(call)
        except TimeoutError:
            raise NoAnswerError(f"{call.path}: no end after {self._patience:.0f} seconds") from None
        except OSError as error:
            raise NoAnswerError(f"{call.path}: {type(error).__name__}: {error}") from error
        answer = parse(call, raw)
        check_whole(call, answer)
        return answer

    async def _read_all(self, call: Call) -> bytes:
        reader, writer = await self._send(call)
        try:
            return await reader.read()
        finally:
            writer.close()

    async def leave(self, call: Call, seconds: float, num_reads: int = 1 << 30) -> bytes:
        """Hang up after `seconds`, or when data came `num_reads` times; returns what was received
        until then. The answer may have ended."""
        reader, writer = await self._send(call)
        chunks: list[bytes] = []
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(seconds):
                while len(chunks) < num_reads and (chunk := await reader.read(1 << 16)):
                    chunks.append(chunk)
        writer.transport.abort()
        return b"".join(chunks)

    async def stall(self, call: Call, seconds: float) -> bool:
        """Read nothing for `seconds`. Whether the server hung up, as it should."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(sock, (self._host, self._port))
            await loop.sock_sendall(sock, call.request(self._host))
            await asyncio.sleep(seconds)
            last = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while chunk := await loop.sock_recv(sock, 1 << 16):
                        last = (last + chunk)[-100:]
            return b"[DONE]" not in last
        except ConnectionResetError:
            return True
        finally:
            sock.close()

    async def _send(self, call: Call) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(call.request(self._host))
        return reader, writer

    async def get(self, path: str) -> Answer:
        """What a path answers to GET."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            head = f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            async with asyncio.timeout(self._patience):
                raw = await reader.read()
        finally:
            writer.close()
        return parse(Call(path=path, body=b""), raw)


def parse(call: Call, raw: bytes) -> Answer:
    """Raises NoAnswerError for an answer that is cut off."""
    head, separator, rest = raw.partition(b"\r\n\r\n")
    if not separator:
        raise NoAnswerError(f"{call.path}: hung up after {raw[:100]!r}")
    lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    if headers.get("transfer-encoding") == "chunked":
        rest = _joined(call, rest)
    elif len(rest) != int(headers.get("content-length", 0)):
        raise NoAnswerError(f"{call.path}: cut off after {rest[-200:]!r}")
    return Answer(status=int(lines[0].split()[1]), body=rest)


def _joined(call: Call, raw: bytes) -> bytes:
    parts: list[bytes] = []
    place = 0
    while (end := raw.find(b"\r\n", place)) >= 0:
        size = int(raw[place:end], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(raw[end + 2 : end + 2 + size])
        place = end + 2 + size + 2
    raise NoAnswerError(f"{call.path}: the stream was cut off after {raw[-200:]!r}")


def check_whole(call: Call, answer: Answer) -> None:
    """Raise NoAnswerError unless it is an error, a whole answer, or a stream with its end."""
    if call.is_streamed and answer.status == 200:
        last = answer.body[answer.body.rstrip().rfind(b"\n\n") :]
        if not any(end in last for end in ENDS.get(call.path, (b"data: [DONE]",))):
            raise NoAnswerError(f"{call.path}: a stream without an end: {answer.body[-300:]!r}")
        answer.events()
    elif not isinstance(answer.json(), dict):
        raise NoAnswerError(f"{call.path}: {answer.body[:300]!r}")
