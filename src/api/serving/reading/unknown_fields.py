"""Finds the fields of a body that its struct does not have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import msgspec

from ....core.suggest import did_you_mean
from ...http.errors import APIError
from .fields import NestedFields
from .unsupported import check_neutral, unsupported_fields

Fields = dict[str, msgspec.Raw]
# A decoder that is made once costs a tenth of one that is made for each body.
decode_fields = msgspec.json.Decoder(Fields).decode
_decode_nested = msgspec.json.Decoder(Fields | list[Fields] | None).decode

MAX_UNKNOWN = 1024
"""Unknown fields that a body, or its messages together, may have."""
_LONGEST_NAME = 64
"""Characters of an unknown field's name that an error repeats."""


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
