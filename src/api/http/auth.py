"""API keys: every path needs one, but for the few that are listed as public."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import APIError, error_response

PUBLIC_PATHS = frozenset({"/health", "/ready", "/ping"})


class RequireKey:
    """ASGI middleware that lets a request through if its bearer token is one of the keys.

    It decides on the path that the router will match, never on a URL made from the Host header
    (CVE-2026-48746), and compares digests in constant time, always with all keys.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS or self._is_known(scope):
            await self._app(scope, receive, send)
            return
        error = APIError(
            401,
            "this server needs an API key: send `Authorization: Bearer KEY`",
            code="invalid_api_key",
        )
        await error_response(error)(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == b"bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
