"""A header of answers that names the fields of the request's body that the server ignored."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...core.suggest import listed

HEADER = "x-tokenmill-ignored-fields"
_STATE = "ignored_fields"
_LONGEST_NAME = 64
"""Characters of a name that the header repeats."""
_IN_HEADERS = "[]._-$"
"""Characters of names that need no percent encoding, in addition to letters and digits."""


class NameIgnoredFields:
    """ASGI middleware that adds the header to answers for which `name_ignored` was called."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_names(message: Message) -> None:
            names = scope.get("state", {}).get(_STATE)
            if names and message["type"] == "http.response.start":
                header = (HEADER.encode(), listed(names).encode("ascii"))
                message["headers"] = [*message["headers"], header]
            await send(message)

        await self._app(scope, receive, send_with_names)


def name_ignored(scope: Scope, names: Sequence[str]) -> None:
    """Add these fields to the answer's header. It has the first eight and the number of others."""
    quoted = [quote(name[:_LONGEST_NAME], safe=_IN_HEADERS, errors="replace") for name in names]
    scope.setdefault("state", {}).setdefault(_STATE, []).extend(quoted)
