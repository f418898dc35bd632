"""Checks on the head of a request that h11 does not make, because it accepts what it can parse."""

from __future__ import annotations

import re

import h11

from ..errors import APIError

MAX_HEADER_BYTES = 16 << 10
"""Bytes of a request's head: request line and headers."""
_BETWEEN = 4
"""Bytes around a header's name and value: colon, space, and the end of the line."""

_ABSOLUTE = re.compile(rb"https?://([^/?#]+)(/?.*)", re.IGNORECASE)
"""A target with scheme, host and path, as clients of proxies send it."""

NOT_HTTP = APIError(400, "this is not a valid HTTP request")
TOO_LARGE = APIError(431, f"the head of this request is larger than {MAX_HEADER_BYTES} bytes")
TWO_LENGTHS = APIError(400, "send either Transfer-Encoding or Content-Length, not both")


class StrictConnection(h11.Connection):
    """A server's side of h11 that refuses large heads, and bodies with two lengths, and shows paths
    as targets.

    h11 limits only heads that arrive in several reads. Two lengths are how requests are smuggled
    past a proxy that believes the other one. `refusal` is the answer to the last error.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEADER_BYTES)
        self.refusal = NOT_HTTP

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event. Raises h11.RemoteProtocolError."""
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.refusal = TOO_LARGE if error.error_status_hint == 431 else NOT_HTTP
            raise
        refusal = _refusal(event) if isinstance(event, h11.Request) else None
        if refusal is not None:
            self.refusal = refusal
            raise h11.RemoteProtocolError(refusal.message, error_status_hint=refusal.status)
        return _without_host_in_target(event) if isinstance(event, h11.Request) else event


def _refusal(request: h11.Request) -> APIError | None:
    num_bytes = len(request.method) + len(request.target)
    num_bytes += sum(len(name) + len(value) + _BETWEEN for name, value in request.headers)
    if num_bytes > MAX_HEADER_BYTES:
        return TOO_LARGE
    names = {name for name, _ in request.headers}
    return TWO_LENGTHS if {b"transfer-encoding", b"content-length"} <= names else None


def _without_host_in_target(request: h11.Request) -> h11.Request:
    """The request with a path as its target. The host of a target replaces the header, which RFC
    9112 wants ignored then: the checks of the Host header see the host that the client asked."""
    found = _ABSOLUTE.fullmatch(request.target)
    if found is None:
        return request
    host, path = found.groups()
    return h11.Request(
        method=request.method,
        target=path if path.startswith(b"/") else b"/" + path,
        headers=[(b"host", host), *(pair for pair in request.headers if pair[0] != b"host")],
        http_version=request.http_version,
    )
