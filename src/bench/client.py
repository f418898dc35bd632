"""A small client for HTTP/1.1 that streams answers.

It parses with h11, which uvicorn brings. Clients with more features cost several times the CPU time
per chunk, and would be the bottleneck on a machine that also serves.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import h11

from ..core.errors import ConfigError, TokenmillError

READ_BYTES = 1 << 16
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ServerError(TokenmillError):
    """The server refused a request, or the connection broke."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """The status of the answer; None: there was no answer."""


@dataclass(slots=True)
class Server:
    """A server's address. Connections are kept and used again."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    is_insecure: bool = False
    """Certificates are not checked."""
    _idle: list[_Connection] = field(default_factory=list)

    async def post(
        self, path: str, body: Mapping[str, Any], request_id: str
    ) -> AsyncIterator[bytes]:
        """Send a body as JSON, and yield the parts of the answer as they arrive.

        Raises ServerError with the server's message for a status other than 200.
        """
        own = {"X-Request-Id": request_id}
        async for part in self._exchange("POST", path, json.dumps(body).encode(), own):
            yield part

    async def get_json(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """GET a path, or POST a body to it, and decode the whole answer. Raises ServerError."""
        sent = None if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        text = b"".join([part async for part in self._exchange(method, path, sent)])
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ServerError(f"{self.url}{path} did not answer with JSON: {error}") from error

    async def post_empty(self, path: str, headers: Mapping[str, str] = NO_HEADERS) -> bytes:
        """POST nothing to a path, and return the whole answer. Raises ServerError."""
        return b"".join([part async for part in self._exchange("POST", path, b"", headers)])

    async def close(self) -> None:
        for connection in self._idle:
            connection.writer.close()
        self._idle.clear()

    async def _exchange(
        self, method: str, path: str, body: bytes | None, own: Mapping[str, str] = NO_HEADERS
    ) -> AsyncIterator[bytes]:
        connection = self._idle.pop() if self._idle else None
        try:
            connection = connection or await self._connect()
            async for part in connection.exchange(method, path, body, {**self.headers, **own}):
                yield part
        except BaseException as error:
            if connection is not None:
                connection.writer.close()
            if isinstance(error, OSError | h11.RemoteProtocolError):
                raise ServerError(f"{self.url}: {error or type(error).__name__}") from error
            raise
        if connection.is_reusable:
            self._idle.append(connection)
        else:
            connection.writer.close()

    async def _connect(self) -> _Connection:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--base-url must be like http://127.0.0.1:8000, got {self.url!r}")
        context = ssl.create_default_context() if parts.scheme == "https" else None
        if context is not None and self.is_insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        port = parts.port or (443 if context else 80)
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context)
        return _Connection(reader, writer, parts.netloc, parts.path.rstrip("/"))


class _Connection:
    """One connection, for one request at a time."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, prefix: str
    ) -> None:
        self._reader, self.writer = reader, writer
        self._host, self._prefix = host, prefix
        self._http = h11.Connection(h11.CLIENT)

    @property
    def is_reusable(self) -> bool:
        """Whether the exchange is complete, and the server keeps the connection."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        """Send a request, and yield the parts of its answer."""
        fields = [("Host", self._host), ("Accept", "*/*"), *headers.items()]
        if body is not None:
            fields += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        head = h11.Request(method=method, target=self._prefix + path, headers=fields)
        self.writer.write(self._http.send(head) or b"")
        if body is not None:
            self.writer.write(self._http.send(h11.Data(data=body)) or b"")
        self.writer.write(self._http.send(h11.EndOfMessage()) or b"")
        await self.writer.drain()
        status, refusal = 0, b""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(READ_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data) and status == 200:
                yield bytes(event.data)
            elif isinstance(event, h11.Data):
                refusal += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                break
        if status != 200:
            text = refusal.decode(errors="replace")[:300]
            raise ServerError(f"{method} {self._prefix + path}: status {status}: {text}", status)
