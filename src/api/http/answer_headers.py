"""Headers that code below a route adds to its answer, whole answers and errors alike."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_STATE = "answer_headers"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class AddHeaders:
    """ASGI middleware that adds the headers that `add_header` was given, and those of `always`."""

    def __init__(self, app: ASGIApp, always: Mapping[str, str] = NO_HEADERS) -> None:
        self._app = app
        self._always = always

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = {**self._always, **scope.get("state", {}).get(_STATE, {})}
                encoded = ((name.encode(), value.encode("ascii")) for name, value in added.items())
                message["headers"] = [*message["headers"], *encoded]
            await send(message)

        await self._app(scope, receive, send_with_headers)


def add_header(scope: Scope, name: str, value: str) -> None:
    """Add a header to the answer, or replace one that was added before."""
    scope.setdefault("state", {}).setdefault(_STATE, {})[name] = value
