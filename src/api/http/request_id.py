"""X-Request-Id: the client's id of a request is sent back with every answer, errors included."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...core.request_options import MAX_CLIENT_ID

HEADER = "x-request-id"


class EchoRequestId:
    """ASGI middleware that sends a request's X-Request-Id back.

    The value is safe in a header: h11 refuses requests that have line ends in a header.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = HEADER.encode()
        given = next((value for key, value in scope.get("headers", ()) if key == name), b"")
        if not given:
            await self._app(scope, receive, send)
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (name, given[:MAX_CLIENT_ID])]
            await send(message)

        await self._app(scope, receive, send_with_id)
