"""Answers as JSON, or as streams that always have an end, such as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..http.errors import APIError, as_api_error
from ..http.logs.request_log import answer_stats
from .context import context_of
from .streams import wait_for_disconnect

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # no proxy may hold events back
KEEP_ALIVE = b": keep-alive\n\n"
encode = msgspec.json.Encoder().encode
Event = TypeVar("Event")
_OTHER_LINE_ENDS = {char.encode(): f"\\u{ord(char):04x}".encode() for char in "\x85\u2028\u2029"}
"""No line ends in JSON and in events, but many clients split with Python's str.splitlines."""


def data_line(document: bytes) -> bytes:
    """The data of an event, from JSON, and the event's end."""
    for char, escape in _OTHER_LINE_ENDS.items():
        document = document.replace(char, escape)
    return b"data: " + document + b"\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing(Generic[Event]):
    """The form of a stream's events in one API."""

    event: Callable[[Event], bytes]
    error: Callable[[APIError], bytes]
    """The last event of a stream that failed, because the HTTP status 200 has been sent before."""
    end: bytes
    keep_alive: bytes
    media_type: str = "text/event-stream"


class Closing(Protocol):
    """The engine requests of a call, which a stream closes at its end."""

    async def aclose(self) -> None: ...


def named_events(error: Callable[[APIError], bytes], keep_alive: bytes) -> Framing[msgspec.Struct]:
    """Events whose name is the tag of their struct. The last event of a stream marks its end."""

    def named(event: msgspec.Struct) -> bytes:
        name = str(event.__struct_config__.tag)
        return b"event: " + name.encode() + b"\n" + data_line(encode(event))

    return Framing(event=named, error=error, end=b"", keep_alive=keep_alive)


def json_response(answer: msgspec.Struct) -> Response:
    return Response(encode(answer), media_type="application/json")


class EventStream(Response, Generic[Event]):
    """Sends events until they end, the client leaves, or an error occurs.

    The requests are closed in every case.
    """

    def __init__(
        self,
        request: Request,
        requests: Closing,
        events: AsyncIterator[Event],
        framing: Framing[Event],
    ) -> None:
        super().__init__(media_type=framing.media_type, headers=HEADERS)
        del self.headers["content-length"]
        self._request = request
        self._requests = requests
        self._found = events
        self._framing = framing
        self._keep_alive_interval = context_of(request).settings.sse_keep_alive_interval

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(wait_for_disconnect(self._request))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            leaving.cancel()
            sending.cancel()
            await self._requests.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for event in self._events():
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except OSError:
            return  # the client has left
        await send({"type": "http.response.body", "body": self._framing.end, "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        framing = self._framing
        events = self._kept_alive() if self._keep_alive_interval else self._found
        try:
            async for found in events:
                yield framing.keep_alive if found is None else framing.event(found)
        except Exception as error:
            shown = as_api_error(error)
            answer_stats(self._request.scope).error = shown.message
            yield framing.error(shown)

    async def _kept_alive(self) -> AsyncIterator[Event | None]:
        """The events, and None after each keep-alive interval without one."""
        coming = asyncio.ensure_future(anext(self._found, None))
        try:
            while True:
                await asyncio.wait((coming,), timeout=self._keep_alive_interval)
                if not coming.done():
                    yield None
                    continue
                found = coming.result()
                if found is None:
                    return
                coming = asyncio.ensure_future(anext(self._found, None))
                yield found
        finally:
            coming.cancel()
