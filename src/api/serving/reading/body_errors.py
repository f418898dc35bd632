"""Explains why a body could not be decoded: the field, its type and range, and what was sent."""

from __future__ import annotations

import re

import msgspec

from ....core import value_errors
from ...http.errors import APIError

_BYTE = re.compile(r"\(byte (\d+)\)")


def explain_value(error: msgspec.ValidationError, kind: type) -> APIError:
    """The error for a field of the body `kind` that is missing or has a wrong value."""
    param, text = value_errors.explain_value(error, kind)
    return APIError(400, text, param=param)


def explain_syntax(error: Exception) -> APIError:
    """The error for a body that is not JSON."""
    if isinstance(error, UnicodeDecodeError):
        return APIError(400, "the body is not valid UTF-8")
    place = _BYTE.search(str(error))
    why = (
        f"the first error is at byte {place.group(1)}"
        if place
        else "it ends too early, or has half of a surrogate pair"
    )
    return APIError(400, f"the body is not valid JSON: {why}")
