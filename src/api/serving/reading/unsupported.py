"""Fields of APIs that this server knows but does not have, in the table UNSUPPORTED of a body.

Many clients always send them. A value that changes nothing passes; every other value is refused
with the reason. The OpenAPI document lists them with the values that pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ...http.errors import APIError

_LONGEST_NEUTRAL = 64
"""Bytes of JSON. A longer value is not decoded, because neutral values are shorter."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field that only null and the `neutral` values may have."""

    reason: str
    neutral: tuple[Any, ...] = ()


UnsupportedFields = Mapping[str, Unsupported]


def unsupported_fields(kind: type) -> UnsupportedFields:
    """The unsupported fields of a body."""
    found: UnsupportedFields = getattr(kind, "UNSUPPORTED", {})
    return found


def check_neutral(name: str, value: msgspec.Raw, field: Unsupported) -> None:
    """Raise APIError (400) for a value that asks for something that this server does not have."""
    if not is_neutral(value, field):
        raise unsupported(name, field.reason)


def is_neutral(value: msgspec.Raw, field: Unsupported) -> bool:
    """Whether a JSON value changes nothing."""
    raw = bytes(value)
    return len(raw) <= _LONGEST_NEUTRAL and msgspec.json.decode(raw) in (None, *field.neutral)


def unsupported(param: str, reason: str) -> APIError:
    """The error for a field that asks for something that this server does not have."""
    return APIError(400, f"{param} is not supported: {reason}", param=param, code="unsupported")
