"""Says in plain words why a value does not fit a type, for errors of msgspec."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

_PLACE = re.compile(r" - at (`key` in )?`\$(.*)`$")
_STEP = re.compile(r"\.(\w+)|\[")
_MISSING = re.compile(r"missing required field `(\w+)`")
_GOT = re.compile(r"got `(\w+)`")
_ITEM = ""
"""The step from a list or an object with any keys to one of its values."""

_SENT = {
    "int": "an integer",
    "float": "a number with a fraction",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def explain_value(error: msgspec.ValidationError, kind: type) -> tuple[str | None, str]:
    """The field of a struct `kind` that is missing or has a wrong value, and a sentence about it:
    its type and range, and what was given. None: the value is no object at all."""
    text = str(error)
    place = _PLACE.search(text)
    path = place.group(2) if place else ""
    steps = [match.group(1) or _ITEM for match in _STEP.finditer(path)]
    missing = _MISSING.search(text)
    if missing:
        path, steps = f"{path}.{missing.group(1)}", [*steps, missing.group(1)]
        return steps[0], f"{path.lstrip('.')} is missing"
    found = _type_at(_type_info(kind), steps)
    where = path.lstrip(".") or "the body"
    if place and place.group(1):
        where, found = f"a key of {where}", _key_type(found)
    if isinstance(found, inspect.AnyType):  # 1e400, for example
        return (steps[0] if steps else None), f"{where} is a number that is out of range"
    sent = _GOT.search(text)
    got = f", got {_SENT.get(sent.group(1), sent.group(1))}" if sent else ""
    return (steps[0] if steps else None), f"{where} must be {_describe(found)}{got}"


def describe_type(kind: Any) -> str:
    """A type and its range, such as "a number from 0 to 1"."""
    return _describe(inspect.type_info(kind))


@cache
def _type_info(kind: type) -> inspect.Type:
    """The types of a struct's fields. Collecting those of a body takes 5 to 10 ms."""
    return inspect.type_info(kind)


def _type_at(kind: inspect.Type, steps: Sequence[str]) -> inspect.Type:
    for step in steps:
        members = _members(kind)
        tags = [k.tag for k in members if isinstance(k, inspect.StructType) and k.tag_field == step]
        if tags:
            return inspect.LiteralType(tuple(tags))
        kind = next(found for found in (_inner(member, step) for member in members) if found)
    return kind


def _key_type(kind: inspect.Type) -> inspect.Type:
    return next(k.key_type for k in _members(kind) if isinstance(k, inspect.DictType))


def _members(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return tuple(k.type if isinstance(k, inspect.Metadata) else k for k in kinds)


def _inner(kind: inspect.Type, step: str) -> inspect.Type | None:
    """The type of a struct's field, or of the values of a list or an object; None without one."""
    match kind:
        case inspect.StructType():
            return next((field.type for field in kind.fields if field.encode_name == step), None)
        case inspect.ListType() | inspect.VarTupleType() if step == _ITEM:
            return kind.item_type
        case inspect.DictType() if step == _ITEM:
            return kind.value_type
    return None


def _describe(kind: inspect.Type) -> str:
    match kind:
        case inspect.UnionType() | inspect.Metadata():
            known = [k for k in _members(kind) if not isinstance(k, inspect.NoneType)]
            return " or ".join(dict.fromkeys(map(_describe, known)))
        case inspect.IntType():
            return "an integer" + _range(kind)
        case inspect.FloatType():
            return "a number" + _range(kind)
        case inspect.StrType():
            return "a string" + _length(kind, "characters")
        case inspect.ListType() | inspect.VarTupleType():
            return "a list" + _length(kind, "items")
        case inspect.DictType():
            return "an object" + _length(kind, "fields")
        case inspect.LiteralType():
            return "one of " + ", ".join(map(repr, kind.values))
        case inspect.BoolType():
            return "true or false"
    return "an object"


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    limits = [
        f"{words} {limit}"
        for words, limit in (
            ("at least", kind.ge), ("greater than", kind.gt), ("at most", kind.le),
        )
        if limit is not None
    ]  # fmt: skip
    return f" that is {' and '.join(limits)}" if limits else ""


def _length(
    kind: inspect.StrType | inspect.ListType | inspect.VarTupleType | inspect.DictType, unit: str
) -> str:
    least, most = kind.min_length, kind.max_length
    if least is not None and most is not None:
        return f" of {least} to {most} {unit}"
    if least is not None:
        return f" of at least {least} {unit}"
    return f" of at most {most} {unit}" if most is not None else ""
