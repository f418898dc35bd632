"""Builds RequestOptions (the sender and its wishes) from headers and body."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from ...core.errors import InvalidRequestError
from ...core.requests.request_options import (
    MAX_CLIENT_ID,
    MAX_METADATA_VALUE,
    MAX_USER,
    RequestOptions,
)
from ..http.errors import APIError
from ..http.keys.auth import key_holder
from ..http.request_id import HEADER, name_request, request_id_of
from .reading.fields import Sender

SESSION_HEADER = "x-session-id"
"""The header that vLLM's router and other gateways use."""
TIMEOUT_HEADER = "X-Request-Timeout"
"""Seconds, as in the body's `request_timeout`."""
TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C's headers that name the trace of a request."""


def request_options(
    request: Request, body: Sender, prefix: str, metadata_headers: Sequence[str]
) -> RequestOptions:
    """The request's id, sender, priority and metadata.

    The id is `prefix` and the client's id, or the server's id of the request. Raises APIError or
    InvalidRequestError with the field's name.
    """
    client_request_id = body.request_id or request.headers.get(HEADER, "")[:MAX_CLIENT_ID] or None
    request_id = f"{prefix}-{client_request_id or request_id_of(request.scope)}"
    name_request(request.scope, request_id)
    holder = key_holder(request.scope)
    return RequestOptions(
        request_id=request_id,
        client_request_id=client_request_id,
        priority=body.priority or 0,
        user=body.user,
        api_key_id=None if holder is None else holder.id,
        has_key_limits=holder is not None and holder.limits is not None,
        cache_salt=body.cache_salt,
        request_timeout=_request_timeout(request, body),
        session_id=_session_id(request, body),
        metadata=_metadata(request, body, metadata_headers),
        trace_headers=_trace_headers(request),
    )


def _session_id(request: Request, body: Sender) -> str | None:
    """The header, OpenAI's `prompt_cache_key`, or `user`: the first of these that is set."""
    key = getattr(body, "prompt_cache_key", None)  # only conversations have it
    found = request.headers.get(SESSION_HEADER) or key or body.user
    return found[:MAX_USER] if found else None


def _request_timeout(request: Request, body: Sender) -> float | None:
    """The seconds of the body or of the header: a gateway sets the header, a client either. The
    smaller number holds."""
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return body.request_timeout
    try:
        seconds = float(text)
        RequestOptions(request_timeout=seconds)
    except (ValueError, InvalidRequestError):
        message = f"{TIMEOUT_HEADER} must be a number of seconds above 0, got {text[:32]!r}"
        raise APIError(400, message, param=TIMEOUT_HEADER) from None
    return seconds if body.request_timeout is None else min(seconds, body.request_timeout)


def _metadata(request: Request, body: Sender, names: Sequence[str]) -> dict[str, str]:
    """The body's metadata and the allowed headers, under the headers' names in lower case.

    Clients must not forge headers that an operator's proxy sets: a body cannot set their keys, and
    a header that is sent twice is refused.
    """
    metadata = dict(body.metadata or {})
    lowered = {name.lower() for name in names}
    for key in metadata:
        if key.lower() in lowered:
            raise APIError(
                400,
                f"metadata must not have the key {key!r}: this server takes it from a header",
                param="metadata",
            )
    for name in sorted(lowered):
        values = request.headers.getlist(name)
        if len(values) > 1:
            text = f"the header {name} was sent {len(values)} times; send it once"
            raise APIError(400, text, param=name)
        if values:
            metadata[name] = values[0]
    return metadata


def _trace_headers(request: Request) -> dict[str, str]:
    """The headers that were sent. A longer value than the standard asks for is left out."""
    found = {name: request.headers.get(name) for name in TRACE_HEADERS}
    return {name: text for name, text in found.items() if text and len(text) <= MAX_METADATA_VALUE}
