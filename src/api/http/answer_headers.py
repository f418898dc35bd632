"""Headers that code below a route adds to its answer, whole answers and errors alike."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_STATE = "answer_headers"


class AddHeaders:
    """ASGI middleware that adds the headers that `add_header` was given."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = scope.get("state", {}).get(_STATE, {}).items()
                encoded = ((name.encode(), value.encode("ascii")) for name, value in added)
                message["headers"] = [*message["headers"], *encoded]
            await send(message)

        await self._app(scope, receive, send_with_headers)


def add_header(scope: Scope, name: str, value: str) -> None:
    """Add a header to the answer, or replace one that was added before."""
    scope.setdefault("state", {}).setdefault(_STATE, {})[name] = value
