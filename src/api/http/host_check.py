"""The Host check of a local server: a web page must not reach it under a name of its own."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import APIError, error_response

LONGEST_NAME = 100
"""Characters of a refused name that the error repeats."""


class CheckHost:
    """ASGI middleware that refuses (403) a Host that is neither this machine nor an allowed name.

    A page can let its own domain point to 127.0.0.1 (DNS rebinding). For the browser, the local
    server then belongs to the page, so the page may read its answers; but the Host is the domain.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = ()) -> None:
        self._app = app
        self._allowed = frozenset(map(host_name, allowed))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [value for name, value in scope.get("headers", ()) if name == b"host"]
        names = [host_name(value.decode("latin-1")) for value in hosts]
        refused = [n for n in names if not (n in self._allowed or is_loopback(n))]
        if not refused:  # HTTP/1.0 needs no Host; browsers always send one
            await self._app(scope, receive, send)
            return
        error = APIError(
            403,
            f"the Host header has {refused[0][:LONGEST_NAME]!r}, and this server is for clients of "
            "its own machine: use http://localhost, or allow the name with --allowed-host",
            code="host_not_allowed",
        )
        await error_response(error, scope)(scope, receive, send)


def host_name(host: str) -> str:
    """A Host without its port, in lower case; an IPv6 address without its brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".") if host.count(":") < 2 else host


def is_loopback(name: str) -> bool:
    """Whether only this machine can have the name."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
