"""Answers a request by the handler of a plugin's route."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...core.contract.providers.http_routes import Route, RouteAnswer, RouteStream
from ...core.errors import CONTAINED, PluginError
from ...core.host.calling.guard import Guard
from ..http.errors import APIError, error_body
from ..http.request_id import name_request, request_id_of
from ..serving.reading.request_reading import read_body
from ..serving.sse import EventStream, Framing, encode
from ..serving.streams import unless_disconnected
from .call import Call
from .guarded import guarded, guarded_pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedRoute:
    """A plugin's route, whose functions are called by guards."""

    route: Route
    handler: Guard
    error: Guard
    id_prefix: str
    """The beginning of the ids of its chats."""


async def handle(served: GuardedRoute, request: Request) -> Response:
    """The handler's answer. Its chats are aborted if it fails or the client leaves."""
    request.state.has_large_body = False
    body = None if served.route.body is None else await read_body(request, served.route.body)
    call = Call(request, served.id_prefix)
    try:
        answer = await unless_disconnected(request, _answer(served.handler, call, body))
    except BaseException:
        await call.aclose()
        raise
    finally:
        # A chat names the request in the handler's task, and logs are written in this one.
        name_request(request.scope, request_id_of(request.scope))
    if isinstance(answer, RouteStream):
        pieces = guarded_pieces(served.handler, answer.pieces)
        return EventStream(request, call, pieces, _framing(served, answer))
    await call.aclose()
    return answer


async def _answer(guard: Guard, call: Call, body: object) -> Response | RouteStream:
    return await guarded(guard, lambda: _checked(guard.call(call, body)))


async def _checked(answering: Any) -> Response | RouteStream:
    """The answer, with its body as bytes. Raises PluginError if it cannot be sent."""
    if not isinstance(answering, Awaitable):
        raise PluginError(f"a handler must be `async def`, got {answering!r:.100}")
    answer = await answering
    match answer:
        case RouteAnswer(status=int(status), media_type=str(media_type)):
            if 200 <= status <= 599 and _is_header(media_type):
                return Response(_sent(answer.body), status, media_type=media_type)
        case RouteStream(pieces=AsyncIterator(), media_type=str(media_type)):
            if _is_header(media_type):
                return answer
    raise PluginError(
        "a handler must return a RouteAnswer with a status from 200 to 599 or a RouteStream of an "
        f"async iterator, and with a media type in ASCII, got {answer!r:.200}"
    )


def _is_header(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _sent(body: object) -> bytes:
    """The body itself if it is bytes, or its JSON."""
    return body if isinstance(body, bytes) else encode(body)


def error_shape(guard: Guard, error: APIError) -> bytes:
    """The body of an error in the plugin's format; in the server's own one if the plugin fails."""
    try:
        return _sent(guard.resume(guard.function, error.status, error.message))
    except CONTAINED as failure:
        guard.fail(failure)
        return error_body(error)


def _framing(served: GuardedRoute, stream: RouteStream) -> Framing[bytes]:
    return Framing(
        event=bytes,
        error=lambda error: error_shape(served.error, error) + b"\n",
        end=b"",
        keep_alive=b"",
        media_type=stream.media_type,
    )
