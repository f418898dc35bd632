"""API keys: every path needs one, except the public paths listed here."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import APIError, error_response

KEY_ID_DIGITS = 16
"""Hexadecimal digits of a key's id: enough that no two keys of one server get the same id."""
PUBLIC_PATHS = frozenset({"/health", "/ready", "/ping"})


class RequireKey:
    """ASGI middleware that lets a request through if its bearer token is one of the keys.

    Anthropic's clients send the key as x-api-key instead. A bearer token goes first.

    It decides on the path that the router will match, never on a URL made from the Host header
    (CVE-2026-48746). It compares digests in constant time, always with all keys.

    It stores the key's id for `api_key_id`. The id is HMAC-SHA256 of the key with `secret`, so a
    reader of the logs cannot test guessed keys against it. Without `secret`, a random one is drawn
    and ids change with every start.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], secret: bytes | None = None) -> None:
        self._app = app
        secret = secret or secrets.token_bytes(32)
        self._ids = {_digest(key.encode()): _key_id(key, secret) for key in keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key_id = self._find(scope) if scope["type"] == "http" else None
        if key_id is not None:
            scope.setdefault("state", {})["api_key_id"] = key_id
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS or key_id is not None:
            await self._app(scope, receive, send)
            return
        error = APIError(401, _refusal(scope), code="invalid_api_key")
        await error_response(error, scope["path"])(scope, receive, send)

    def _find(self, scope: Scope) -> str | None:
        key = _sent_key(scope)
        digest = _digest(key)
        found = [
            key_id for known, key_id in self._ids.items() if hmac.compare_digest(digest, known)
        ]
        return found[0] if found and key else None


def api_key_id(scope: Scope) -> str | None:
    """The id of the API key that a request was sent with; None if the server needs no key."""
    found: str | None = scope.get("state", {}).get("api_key_id")
    return found


def _refusal(scope: Scope) -> str:
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


def _key_id(key: str, secret: bytes) -> str:
    return hmac.digest(secret, key.encode(), "sha256").hex()[:KEY_ID_DIGITS]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
