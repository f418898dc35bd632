"""Finds the fields of a body that its struct does not have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ....core.suggest import did_you_mean
from ...http.errors import APIError
from .bodies import ChatMessageBody, StreamOptions
from .unsupported import check_neutral, unsupported_fields

Fields = dict[str, msgspec.Raw]

MAX_UNKNOWN = 1024
"""Unknown fields that a body, or its messages together, may have."""
_LONGEST_NAME = 64
"""Characters of an unknown field's name that an error repeats."""


@dataclass(frozen=True, slots=True)
class UnknownField:
    """A field that the server does not know. `parent` is the field around it, or ""."""

    name: str
    parent: str
    known: Sequence[str]

    @property
    def path(self) -> str:
        return f"{self.parent}.{self.name}" if self.parent else self.name


def unknown_fields(raw: bytes | bytearray, kind: type) -> list[UnknownField]:
    """The unknown fields of a valid body of this kind, each name once.

    Raises APIError (400) for a known field that is not supported, unless its value is neutral.
    """
    given = msgspec.json.decode(raw, type=Fields)
    unsupported = unsupported_fields(kind)
    for name in sorted(given.keys() & unsupported.keys()):
        check_neutral(name, given[name], unsupported[name])
    fields: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]
    found = [*_others(given, "", (*fields, *unsupported))]
    for name, find in (("stream_options", _in_options), ("messages", _in_messages)):
        if name in fields and name in given:
            found += find(given[name])
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


def _others(given: Iterable[str], parent: str, known: Sequence[str]) -> list[UnknownField]:
    names = dict.fromkeys(given).keys() - set(known)
    if len(names) > MAX_UNKNOWN:
        raise APIError(400, f"the body has more than {MAX_UNKNOWN} unknown fields")
    return [UnknownField(name, parent, known) for name in sorted(names)]


def _in_options(raw: msgspec.Raw) -> list[UnknownField]:
    options = msgspec.json.decode(raw, type=Fields | None)
    return _others(options or (), "stream_options", StreamOptions.__struct_fields__)


def _in_messages(raw: msgspec.Raw) -> list[UnknownField]:
    messages = msgspec.json.decode(raw, type=list[Fields] | None) or ()
    names = (name for message in messages for name in message)
    return _others(names, "messages[]", ChatMessageBody.__struct_fields__)
