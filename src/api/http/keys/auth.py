"""API keys: every path needs one, except the public paths listed here."""

from __future__ import annotations

from starlette._utils import get_route_path
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import APIError, error_response
from .ring import KeyHolder, KeyRing

_PAGES = (
    *("/docs", "/docs/page.js", "/docs/swagger-ui/swagger-ui.css"),
    *("/docs/swagger-ui/swagger-ui-bundle.js", "/live", "/live/live.css", "/live/live.js"),
    *("/live/charts.js", "/live/playground.js", "/live/server.js"),
)
"""The pages and their files. A browser that opens an address sends no key."""
PUBLIC_PATHS = frozenset({"/health", "/ready", "/ping", *_PAGES})
ADMIN_PATHS = ("/debug/", "/reset_prefix_cache", "/start_profile", "/stop_profile")
"""Beginnings of the paths for the admin key only, on a server that has one. On others they do not
exist."""


class RequireKey:
    """ASGI middleware that lets a request through if its bearer token is one of the keys.

    Anthropic's clients send the key as x-api-key instead. A bearer token goes first.

    It decides on the path that the router will match, even in an app that is mounted under a
    prefix, and never on a URL made from the Host header (CVE-2026-48746). Admin paths are open to
    the admin key only.

    It stores the key's holder for `key_holder`.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        holder = self._find(scope)
        if holder is not None:
            scope.setdefault("state", {})["key_holder"] = holder
        error = self._refusal(scope, holder)
        app = self._app if error is None else error_response(error, scope)
        await app(scope, receive, send)

    def _find(self, scope: Scope) -> KeyHolder | None:
        return self._keys.find(_sent_key(scope))

    def _refusal(self, scope: Scope, holder: KeyHolder | None) -> APIError | None:
        # The router matches a path with a line end, too, as `$` of regular expressions does.
        path = get_route_path(scope).removesuffix("\n")
        if self._keys.has_admin and path.startswith(ADMIN_PATHS):
            if holder is not None and not holder.is_admin:
                return APIError(403, "this path needs the admin key", code="admin_key_required")
        elif path in PUBLIC_PATHS or not self._keys.has_tenants:
            return None
        return None if holder is not None else APIError(401, _hint(scope), code="invalid_api_key")


def key_holder(scope: Scope) -> KeyHolder | None:
    """The holder of the API key that a request was sent with; None without a known key."""
    found: KeyHolder | None = scope.get("state", {}).get("key_holder")
    return found


def _hint(scope: Scope) -> str:
    if _sent_key(scope):
        return "this server does not know the API key that was sent"
    return "this server needs an API key: send `Authorization: Bearer KEY`"


def _sent_key(scope: Scope) -> bytes:
    """The key of the request; empty without one."""
    scheme, _, key = _header(scope, b"authorization").partition(b" ")
    is_bearer = scheme.lower() == b"bearer"
    return (key.strip() if is_bearer else b"") or _header(scope, b"x-api-key").strip()


def _header(scope: Scope, name: bytes) -> bytes:
    found: bytes = next((value for known, value in scope["headers"] if known == name), b"")
    return found
