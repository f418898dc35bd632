"""Answers as one document, or as server-sent events that always have an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..http.errors import as_api_error, error_body
from .chunks import Answer, check_ends, stream_chunks, total_usage
from .context import context_of
from .reading.bodies import SamplingFields
from .streams import RequestSet, final_unless_disconnected, wait_for_disconnect

DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # no proxy may hold events back
KEEP_ALIVE = b": keep-alive\n\n"


async def respond(
    request: Request, requests: RequestSet, answer: Answer, body: SamplingFields
) -> Response:
    """Send an answer. The requests are closed at its end, or when the client leaves.

    Raises APIError if a request of a whole answer was ended early.
    """
    context = context_of(request)
    if body.stream:
        interval = context.settings.sse_keep_alive_interval
        chunks = stream_chunks(answer, requests, body.stream_options, context.engine)
        return EventStream(request, chunks, requests.aclose, keep_alive_interval=interval)
    outputs = await final_unless_disconnected(request, requests)
    check_ends(outputs, context.engine)
    whole = answer.whole(outputs, total_usage(requests, outputs))
    return Response(msgspec.json.encode(whole), media_type="application/json")


class EventStream(Response):
    """Sends structs as events until they end, the client leaves, or an error occurs.

    An error is sent as an event, because the HTTP status 200 has been sent before. `close` is
    awaited in every case.
    """

    def __init__(
        self,
        request: Request,
        chunks: AsyncIterator[msgspec.Struct],
        close: Callable[[], Awaitable[None]],
        *,
        keep_alive_interval: float = 0.0,
    ) -> None:
        super().__init__(media_type="text/event-stream", headers=HEADERS)
        del self.headers["content-length"]
        self._request = request
        self._chunks = chunks
        self._close = close
        self._keep_alive_interval = keep_alive_interval

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
            await self._close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for event in self._events():
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except OSError:
            return  # the client has left
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        encode = msgspec.json.Encoder().encode
        try:
            async for chunk in self._kept_alive():
                yield KEEP_ALIVE if chunk is None else b"data: " + encode(chunk) + b"\n\n"
        except Exception as error:
            yield b"data: " + error_body(as_api_error(error)) + b"\n\n"

    async def _kept_alive(self) -> AsyncIterator[msgspec.Struct | None]:
        """The chunks, and None after each keep-alive interval without a chunk."""
        if not self._keep_alive_interval:
            async for chunk in self._chunks:
                yield chunk
            return
        coming = asyncio.ensure_future(anext(self._chunks, None))
        try:
            while True:
                await asyncio.wait((coming,), timeout=self._keep_alive_interval)
                if not coming.done():
                    yield None
                    continue
                found = coming.result()
                if found is None:
                    return
                coming = asyncio.ensure_future(anext(self._chunks, None))
                yield found
        finally:
            coming.cancel()
