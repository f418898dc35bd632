"""Limits on the sizes of a body's fields, checked before they are decoded.

Decoding 4 MB of small lists takes 100 ms, and checking them in Python seconds. So each field has a
limit in bytes. Fields with texts or token ids may be as large as the body; their limit is the
number of values in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import msgspec

from ...http.errors import APIError
from .fields import Ignored
from .unknown_fields import unsupported_fields

Fields = Mapping[str, msgspec.Raw]

SMALL_BYTES = 64 << 10
"""A body of this size is decoded within 5 ms, whatever it has."""
FIELD_BYTES = 256 << 10
SUM_BYTES = 1 << 20
"""Bytes of all fields that have a limit."""
MAX_OBJECTS = 1 << 16
"""Objects and lists in one field: messages and their parts."""
MAX_STRINGS = 1 << 17
"""Strings in one field, names included."""
_MAX_UNKNOWN_QUOTES = 1 << 16

_TEXTS = frozenset(("documents", "input", "instructions", "messages", "prompt", "system", "tokens"))
"""Fields without a limit in bytes."""
_LIMITS = {
    "allowed_token_ids": 1 << 20,
    "chat_template_kwargs": 64 << 10,
    "tools": 512 << 10,
    "vllm_xargs": 32 << 10,
}
"""Limits that differ from FIELD_BYTES."""


def check_unknown(raw: bytes | bytearray, kind: type) -> None:
    """Raise APIError (400) for unknown fields that are expensive to list. It decodes nothing."""
    known = msgspec.json.decode(raw, type=_all_raw(kind))
    values = (getattr(known, name) for name in known.__struct_fields__)
    num_known = sum(bytes(value).count(b'"') for value in values)
    if raw.count(b'"') - num_known > _MAX_UNKNOWN_QUOTES:
        raise APIError(400, "the body has too many unknown or repeated fields")


def check_sizes(given: Fields, kind: type) -> None:
    """Raise APIError (400) for a field of the body `kind` that is too large to be decoded."""
    total = 0
    for name, value in given.items():
        if name not in _decoded_fields(kind):
            continue
        num_bytes = len(memoryview(value))
        if name not in _TEXTS:
            total += num_bytes
            _check_bytes(name, num_bytes, _LIMITS.get(name, FIELD_BYTES))
        if num_bytes > SMALL_BYTES:
            _check_shape(name, bytes(value))
    if total > SUM_BYTES:
        raise APIError(400, f"the fields of the body are larger than {SUM_BYTES} bytes together")


def _check_bytes(name: str, num_bytes: int, most: int) -> None:
    if num_bytes > most:
        raise APIError(
            400, f"{name} takes at most {most} bytes of JSON, got {num_bytes}", param=name
        )


def _check_shape(name: str, raw: bytes) -> None:
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # without the quotes within strings
    num_strings = plain.count(b'"') // 2
    if num_strings > MAX_STRINGS:
        raise _too_many(name, num_strings, MAX_STRINGS, "strings")
    if _num_opened(plain) > MAX_OBJECTS:  # perhaps within strings
        num_objects = _num_opened(b" ".join(plain.split(b'"')[::2]))
        if num_objects > MAX_OBJECTS:
            raise _too_many(name, num_objects, MAX_OBJECTS, "objects and lists")


def _num_opened(raw: bytes) -> int:
    return raw.count(b"{") + raw.count(b"[")


def _too_many(name: str, number: int, most: int, what: str) -> APIError:
    return APIError(400, f"{name} takes at most {most} {what}, got {number}", param=name)


@cache
def _decoded_fields(kind: type) -> frozenset[str]:
    """The fields of a body whose values are built."""
    fields = msgspec.structs.fields(kind)
    return frozenset(field.encode_name for field in fields if field.type != Ignored | None)


@cache
def _all_raw(kind: type) -> type[msgspec.Struct]:
    """A body whose values stay JSON text. Fields that it does not have are skipped."""
    names = dict.fromkeys(
        (*(field.encode_name for field in msgspec.structs.fields(kind)), *unsupported_fields(kind))
    )
    fields = [(name, msgspec.Raw, msgspec.Raw()) for name in names]
    return msgspec.defstruct(f"Raw{kind.__name__}", fields, gc=False)
