"""Types and limits of fields that the bodies of several APIs have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from ....core.requests.request_options import (
    MAX_CACHE_SALT,
    MAX_CLIENT_ID,
    MAX_METADATA_KEY,
    MAX_METADATA_PAIRS,
    MAX_METADATA_VALUE,
    MAX_USER,
)

MAX_IDS = 1 << 20
"""Token ids in one list: no model has a longer context."""
MAX_MESSAGES = 1 << 14
MAX_PARTS = 1 << 10
MAX_DOCUMENTS = 1 << 10
MAX_TOOLS = 128
"""As in OpenAI's API."""

Text = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_CLIENT_ID)]
ModelName = Annotated[str, Meta(max_length=256)]
Count = Annotated[int, Meta(ge=0, le=2**31)]
Seconds = Annotated[float, Meta(gt=0, le=2**31)]
PositiveCount = Annotated[int, Meta(ge=1, le=2**31)]
Metadata = Annotated[
    dict[
        Annotated[str, Meta(min_length=1, max_length=MAX_METADATA_KEY)],
        Annotated[str, Meta(max_length=MAX_METADATA_VALUE)],
    ],
    Meta(max_length=MAX_METADATA_PAIRS),
]
FunctionNameText = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
NestedFields = Mapping[str, type]
"""Fields with an object, or a list of them, whose unknown fields are looked for: the objects'
type, by the field's name."""
Schema = dict[str, Any] | bool
"""A JSON schema."""


class Sender(msgspec.Struct, kw_only=True):
    """The fields of a body that say whose request it is, and how urgent."""

    user: Annotated[str, Meta(max_length=MAX_USER)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=MAX_CACHE_SALT)] | None = None
    metadata: Metadata | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31)] | None = None
    request_id: Name | None = None
    request_timeout: Seconds | None = None
    """The request ends after this time; tokenmill's own field."""


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    """OpenAI's padding against traffic analysis. Not supported: only false is accepted."""


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """vLLM's form of an answer's grammar: exactly one of its first six fields is given."""

    json: Schema | str | None = None
    """A schema, or its JSON text."""
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """In the syntax of Lark, or of GBNF if it has "::="."""
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None
    # Options of grammars for JSON
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    """Objects whose schema lists properties have no others, unless the schema allows them."""
    disable_fallback: bool | None = None
    """Without effect: there is one grammar backend, so there is never a fallback."""


class Ignored(msgspec.Struct):
    """An object whose fields are skipped and not built."""


NO_EFFECT = Meta(description="Accepted and ignored: it never changes an answer.")
IgnoredText = Annotated[str, NO_EFFECT]
IgnoredFlag = Annotated[bool, NO_EFFECT]


def ignored_fields(kind: type) -> frozenset[str]:
    """The fields of a body that clients send, and that never change an answer."""
    return frozenset(
        field.encode_name
        for field in msgspec.structs.fields(kind)
        if any(one is Ignored or NO_EFFECT in get_args(one) for one in get_args(field.type))
    )
