"""A client's connection: uvicorn's, with a deadline for headers and a limit on connections."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import APIError, error_body, error_response

HEAD_SECONDS = 10.0
"""Maximum time from the first byte of a request to the end of its headers."""
MOST_CONNECTIONS = 4096
OTHER_FILES = 64
"""File descriptors reserved for everything that is not a connection."""


class Connection(H11Protocol):
    """Speaks HTTP/1.1 with one client; errors that uvicorn itself sends have OpenAI's shape."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > max_connections():
            self.app = _refuse
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to data that is not HTTP or has too large headers, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = error_body(
                APIError(400, "this is not a valid HTTP request, or its head is too large")
            )
            head = h11.Response(
                status_code=400,
                headers=[
                    ("content-type", "application/json"),
                    ("content-length", str(len(body))),
                    ("connection", "close"),
                ],
                reason=b"Bad Request",
            )
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_head(self) -> None:
        """Start or cancel the deadline for a request's headers.

        It covers the time from the first byte of a head. uvicorn's keep-alive timer covers the time
        between requests.
        """
        if self.conn.their_state is not h11.IDLE:
            self._forget_deadline()
        elif self._head_deadline is None:
            self._head_deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _forget_deadline(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None


def max_connections() -> int:
    """Maximum number of open connections: the free file descriptors, at most MOST_CONNECTIONS."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, soft_limit - OTHER_FILES))


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    error = APIError(
        503,
        "this server has too many connections; try again later",
        code="overloaded",
        retry_after=1,
    )
    answer = error_response(error)
    answer.headers["Connection"] = "close"
    await answer(scope, receive, send)
