"""Errors in Anthropic's shape: {"type": "error", "error": {"type", "message"}, "request_id"}."""

from __future__ import annotations

from typing import Literal

import msgspec

PATHS = ("/v1/messages", "/v1/messages/count_tokens")
"""Ends of the paths whose errors have this shape."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",  # documented, but missing in the SDK's types
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicErrorDetail(msgspec.Struct, kw_only=True):
    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct, kw_only=True):
    type: Literal["error"] = "error"
    error: AnthropicErrorDetail
    request_id: str


def anthropic_error_body(status: int, message: str, request_id: str) -> bytes:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    detail = AnthropicErrorDetail(type=kind, message=message)
    return msgspec.json.encode(AnthropicErrorBody(error=detail, request_id=request_id))
