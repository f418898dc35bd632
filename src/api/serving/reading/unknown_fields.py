"""Finds the fields of a body that its struct does not have.

Many clients always send fields that this server does not support. A value that changes nothing
passes; every other value is refused with the reason. The OpenAPI document lists them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import msgspec

from ....core.wording.suggest import did_you_mean
from ...http.errors import APIError
from .fields import NestedFields, StreamOptions

Fields = dict[str, msgspec.Raw]
# A decoder that is made once costs a tenth of one that is made for each body.
decode_fields = msgspec.json.Decoder(Fields).decode
_decode_nested = msgspec.json.Decoder(Fields | list[Fields] | None).decode

MAX_UNKNOWN = 1024
"""Unknown fields that a body, or its messages together, may have."""
_LONGEST_NAME = 64
"""Characters of an unknown field's name that an error repeats."""
_LONGEST_NEUTRAL = 64
"""Bytes of JSON. A longer value is not decoded, because neutral values are shorter."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field that only null and the `neutral` values may have."""

    reason: str
    neutral: tuple[Any, ...] = ()


UnsupportedFields = Mapping[str, Unsupported]


@dataclass(frozen=True, slots=True)
class UnknownField:
    """A field that the server does not know. `parent` is the field around it, or ""."""

    name: str
    parent: str
    known: Collection[str]

    @property
    def path(self) -> str:
        return f"{self.parent}.{self.name}" if self.parent else self.name


def unknown_fields(given: Fields, kind: type) -> list[UnknownField]:
    """The unknown fields of a valid body of this kind, each name once.

    Raises APIError (400) for a known field that is not supported, unless its value is neutral.
    """
    unsupported = unsupported_fields(kind)
    for name in sorted(given.keys() & unsupported.keys()):
        check_neutral(name, given[name], unsupported[name])
    known = _known_fields(kind)
    found = _others(given, "", known)
    nested: NestedFields = getattr(kind, "NESTED", {})
    for name, inner in nested.items():
        if name in given:
            found += _within(name, given[name], inner)
    return list({field.path: field for field in found}.values())


def refuse_unknown(fields: Sequence[UnknownField]) -> None:
    """Raise APIError (400) for the first of these fields, if there is one."""
    for field in fields:
        name = field.name[:_LONGEST_NAME]
        where = f" in {field.parent}" if field.parent else ""
        raise APIError(
            400,
            f"unknown field {name!r}{where}{did_you_mean(name, field.known)}",
            param=field.parent.partition("[")[0] or name,
        )


@cache
def _known_fields(kind: type) -> dict[str, None]:
    """The names of a body's fields, supported or not. A dict, because it keeps their order."""
    fields: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]
    return dict.fromkeys((*fields, *unsupported_fields(kind)))


def _others(given: Iterable[str], parent: str, known: dict[str, None]) -> list[UnknownField]:
    names = {name for name in given if name not in known}
    if len(names) > MAX_UNKNOWN:
        raise APIError(400, f"the body has more than {MAX_UNKNOWN} unknown fields")
    return [UnknownField(name, parent, known) for name in sorted(names)]


def _within(field: str, raw: msgspec.Raw, kind: type) -> list[UnknownField]:
    given = _decode_nested(raw) or ()
    known = _known_fields(kind)
    if isinstance(given, dict):
        return _others(given, field, known)
    return _others(chain.from_iterable(given), f"{field}[]", known)


def unsupported_fields(kind: type) -> UnsupportedFields:
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


def check_stream_options(options: StreamOptions | None, is_streamed: bool | None) -> None:
    """Raise APIError (400) for options without a stream, and for padding."""
    if options is not None and not is_streamed:
        raise APIError(400, "stream_options needs stream: true", param="stream_options")
    if options is not None and options.include_obfuscation:
        raise unsupported("stream_options.include_obfuscation", "leave it out")
