"""One id per request: in the header X-Request-Id of its answer, in all logs, and for plugins."""

from __future__ import annotations

import time
import uuid
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, bound_contextvars

from ...core.log import get_logger
from ...core.request_options import MAX_CLIENT_ID

log = get_logger("api")

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
        began, status = time.monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                value = given or quote(scope["state"][_STATE], safe=_IN_HEADER).encode()
                message["headers"] = [*message["headers"], (name, value)]
            await send(message)

        with bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                if self._logs:
                    seconds = round(time.monotonic() - began, 6)
                    log.info(
                        "request",
                        method=scope["method"],
                        path=scope["path"],
                        status=status,
                        seconds=seconds,
                    )


def request_id_of(scope: Scope) -> str:
    """The id of a request: the client's X-Request-Id, or one of the server."""
    found: str = scope["state"][_STATE]
    return found


def name_request(scope: Scope, request_id: str) -> None:
    """Give a request the id that its answer has. Logs show it from now on."""
    scope["state"][_STATE] = request_id
    bind_contextvars(request_id=request_id)
