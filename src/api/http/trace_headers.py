"""The trace that a request belongs to: W3C's headers traceparent and tracestate."""

from __future__ import annotations

from starlette.requests import Request

from ...core.requests.request_options import MAX_METADATA_VALUE

NAMES = ("traceparent", "tracestate")


def trace_headers(request: Request) -> dict[str, str]:
    """The headers that were sent. A longer value than the standard asks for is left out."""
    found = {name: request.headers.get(name) for name in NAMES}
    return {name: text for name, text in found.items() if text and len(text) <= MAX_METADATA_VALUE}
