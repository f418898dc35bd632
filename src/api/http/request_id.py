"""One id per request: in the header X-Request-Id of its answer, in all logs, and for plugins."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, bound_contextvars

from ...core.requests.request_options import MAX_CLIENT_ID
from .logs.request_log import CLIENT_LEFT, MAX_TEXT, answer_stats

_logger = logging.getLogger("tokenmill.api")

HEADER = "x-request-id"
_STATE = "request_id"
_IN_HEADER = "!#$&'()*+,/:;<=>?@[]^`{|}~ \""
"""Characters of an id that need no percent encoding, in addition to letters, digits and -._"""


class TrackRequests:
    """ASGI middleware that gives each request its id, and logs the request when it has ended.

    An answer has the X-Request-Id that the client sent, or else the request's id. A client's value
    is safe in a header: h11 refuses requests that have line ends in a header.
    """

    def __init__(self, app: ASGIApp, *, logs: bool = False) -> None:
        """`logs`: write a log event for each request."""
        self._app = app
        self._logs = logs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = HEADER.encode()
        given = next((value for key, value in scope["headers"] if key == name), b"")
        given = given[:MAX_CLIENT_ID]
        request_id = given.decode("latin-1") or uuid.uuid4().hex
        scope.setdefault("state", {})[_STATE] = request_id
        began, status, is_complete = time.monotonic(), 0, False

        async def send_with_id(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                value = given or quote(scope["state"][_STATE], safe=_IN_HEADER).encode()
                message["headers"] = [*message["headers"], (name, value)]
            else:
                is_complete = not message.get("more_body", False)
            await send(message)

        with bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            except asyncio.CancelledError:
                stats = answer_stats(scope)
                stats.error = stats.error or "the server stopped"
                raise
            finally:
                if self._logs:
                    log_request(scope, status if is_complete else CLIENT_LEFT, began)


def log_request(scope: Scope, status: int, began: float) -> None:
    """Log the event `request`, which `began` at a time of the monotonic clock.

    Probes and scrapes come every few seconds, so a GET that succeeds is an event for debugging.
    """
    is_routine = scope["method"] == "GET" and status < 400
    level = logging.DEBUG if is_routine else logging.INFO
    if not _logger.isEnabledFor(level):
        return
    fields = {
        "method": scope["method"],
        "path": scope["path"][:MAX_TEXT],
        "status": status,
        "seconds": round(time.monotonic() - began, 4),
        **answer_stats(scope).fields(),
    }
    # The standard library and structlog would need the same time again, to find the caller's line.
    _logger.handle(
        _logger.makeRecord(_logger.name, level, "", 0, "request", (), None, extra=fields)
    )


def request_id_of(scope: Scope) -> str:
    """The id of a request: the client's X-Request-Id, or one of the server."""
    found: str = scope["state"][_STATE]
    return found


def name_request(scope: Scope, request_id: str) -> None:
    """Give a request the id that its answer has. Logs show it from now on."""
    scope["state"][_STATE] = request_id
    bind_contextvars(request_id=request_id)
