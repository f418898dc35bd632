"""The middleware of Serve's HTTP proxies: it chooses sessions, and mends lost answers.

A proxy runs on each machine, so a replica that is lost ends no connection. Set
RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=tokenmill.ray_serve:middlewares before `ray start`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..api.anthropic.messages import failed_message
from ..api.http.anthropic_errors import PATHS as ANTHROPIC_PATHS
from ..api.http.anthropic_errors import anthropic_error_body
from ..api.http.errors import APIError, error_response, shutting_down
from ..api.openai.chunks import CHUNKS
from ..api.operations import METRICS_TYPE
from ..api.responses.route import EVENTS
from ..api.responses.writer import error_event
from ..core.supervised.engine_label import join_metrics
from .application import REPLICA
from .known import siblings
from .routing import NOT, ONLY

PREFIX_BYTES = 1024
"""Beginning of a request's body. Requests with the same one go to the same replica."""
MAX_BODY_BYTES = 4 << 20
"""A request with a longer body is not sent again. The server's default limit."""
METRICS_SECONDS = 1.0
"""Time in which replicas must send their metrics. A hanging one is left out."""
SESSION = "x-session-id"
STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
LOST = "the replica that computed this answer was lost or failed; send the request again"


def middlewares() -> list[Middleware]:
    """The middlewares of each proxy."""
    return [Middleware(Front)]


class Front:
    """Sends each request to a replica, and to another one if the first is lost before it answers.

    A stream whose replica is lost gets an error event and its end. `/metrics` are those of all
    replicas.
    """

    def __init__(self, app: ASGIApp) -> None:
        """`app`: Serve's proxy."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"].endswith("/metrics"):
            await self._send_metrics(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages = await _read(receive)
        body = b"".join(message.get("body", b"") for message in messages)
        session = Headers(scope=scope).get(SESSION) or _digest(body[:PREFIX_BYTES])
        is_complete = not messages[-1].get("more_body", False)
        client = _Client(receive, messages)
        answer = _Answer(send, holds_back=is_complete)
        await self._app(_with_session(scope, session), client.messages(), answer.take)
        if is_complete and not answer.has_begun and not client.has_left:
            refusing = answer.refused_by
            other = f"{session} again" if refusing is None else NOT + refusing
            answer, again = _Answer(send, holds_back=False), _with_session(scope, other)
            await self._app(again, client.messages(), answer.take)
        if not client.has_left:
            await answer.close(scope, receive)

    async def _send_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = await self._ask(scope, "metrics")
        if first.status_code == 503:  # it hangs, or its engine is started again
            first = await self._ask(scope, NOT + first.headers.get(REPLICA, ""))
        if REPLICA in first.headers:
            name = first.headers[REPLICA]
            others = siblings(name) - {name}
            found = await asyncio.gather(*(self._ask(scope, ONLY + one) for one in others))
            texts = {
                one.headers[REPLICA]: bytes(one.body)
                for one in (first, *found)
                if one.status_code == 200 and REPLICA in one.headers
            }
            if texts:
                first = Response(join_metrics(texts), media_type=METRICS_TYPE)
        await first(scope, receive, send)

    async def _ask(self, scope: Scope, session: str) -> Response:
        """The whole answer of a replica to a request without a body; 503 if it hangs."""
        answer, parts = Response(status_code=503), list[bytes]()

        async def take(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.status_code, answer.raw_headers = message["status"], message["headers"]
            parts.append(message.get("body", b""))

        client = _Client(_never, [{"type": "http.request"}])
        try:
            async with asyncio.timeout(METRICS_SECONDS):
                await self._app(_with_session(scope, session), client.messages(), take)
        except TimeoutError:
            return Response(status_code=503)
        answer.body = b"".join(parts)
        return answer


class _Client:
    """The client's side of a request, whose first messages can be received again."""

    def __init__(self, receive: Receive, first: Sequence[Message]) -> None:
        self._receive, self._first = receive, first
        self.has_left = False

    def messages(self) -> Receive:
        """Receives all messages, from the first one."""
        waiting = deque(self._first)

        async def receive() -> Message:
            message = waiting.popleft() if waiting else await self._receive()
            self.has_left = message["type"] == "http.disconnect"
            return message

        return receive


class _Answer:
    """Passes an answer on, and remembers how far it came."""

    def __init__(self, send: Send, *, holds_back: bool) -> None:
        """`holds_back`: an answer with status 503 counts as not begun."""
        self._send, self._holds_back = send, holds_back
        self._has_ended = False
        self._is_stream = False
        self._is_refused = False
        self.refused_by: str | None = None
        """The replica that answered with 503, if it named itself."""
        self.has_begun = False

    async def take(self, message: Message) -> None:
        """Take a message of ASGI."""
        if message["type"] == "http.response.start":
            self._is_refused = self._holds_back and message["status"] == 503
            self._is_stream = STREAM in message["headers"]
            if self._is_refused:
                self.refused_by = Headers(raw=message["headers"]).get(REPLICA)
        if not self._is_refused:
            self.has_begun = True
            is_body = message["type"] == "http.response.body"
            self._has_ended = is_body and not message.get("more_body", False)
            await self._send(message)

    async def close(self, scope: Scope, receive: Receive) -> None:
        """End an answer whose replica was lost."""
        error = shutting_down(LOST)
        if not self.has_begun:
            await _whole(scope, error)(scope, receive, self._send)
        elif self._is_stream and not self._has_ended:
            body = _last_events(scope, error)
            await self._send({"type": "http.response.body", "body": body})


def _whole(scope: Scope, error: APIError) -> Response:
    """An answer that has not begun, in the shape of the API of the path."""
    if not scope["path"].endswith(ANTHROPIC_PATHS):
        return error_response(error)
    request_id = Headers(scope=scope).get("x-request-id", "")
    body = anthropic_error_body(error.status, str(error), request_id)
    return Response(body, status_code=error.status, media_type="application/json")


def _last_events(scope: Scope, error: APIError) -> bytes:
    """The last events of a stream that failed, in the shape of the API of the path."""
    path = scope["path"]
    if path.endswith("/v1/messages"):
        return failed_message(Headers(scope=scope).get("x-request-id", ""), error)
    if path.endswith("/v1/responses"):
        return EVENTS.event(error_event(error))
    return CHUNKS.error(error) + CHUNKS.end


async def _read(receive: Receive) -> list[Message]:
    """The messages of a request's body, or of more than its first MAX_BODY_BYTES."""
    messages, size = list[Message](), 0
    while size <= MAX_BODY_BYTES:
        messages.append(message := await receive())
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            break
    return messages


async def _never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("the event is never set")


def _with_session(scope: Scope, session: str) -> Scope:
    found = {**scope, "headers": list(scope["headers"])}
    MutableHeaders(scope=found)[SESSION] = session
    return found


def _digest(beginning: bytes) -> str:
    return hashlib.sha256(beginning).hexdigest()
