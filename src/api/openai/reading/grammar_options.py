"""Reads vLLM's options of grammars for JSON: whitespace, and properties that no schema lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ....core.grammar import Grammar, GrammarKind
from ...http.errors import APIError
from .bodies import SamplingFields

_WHITESPACE, _NONE = "whitespace_pattern", "disable_any_whitespace"
_CLOSED = "disable_additional_properties"
_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value has a schema under each of its keys."""
_OF_SCHEMA = (
    *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames"),
    *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
)
"""Keywords whose value is a schema, or a list of schemas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option that a body sets to another value than the neutral one."""

    name: str
    """Its path in the body."""
    value: Any

    @property
    def field(self) -> str:
        return self.name.rpartition(".")[2].removeprefix("guided_")


def read_options(body: SamplingFields) -> Sequence[Option]:
    """The options that a body sets."""
    given: dict[str, Any] = {"guided_whitespace_pattern": body.guided_whitespace_pattern}
    if body.structured_outputs is not None:
        for field in (_WHITESPACE, _NONE, _CLOSED):
            given[f"structured_outputs.{field}"] = getattr(body.structured_outputs, field)
    return [
        Option(name=name, value=value)
        for name, value in given.items()
        if value is not None and value is not False
    ]


def with_options(grammar: Grammar, options: Sequence[Option]) -> Grammar:
    """The grammar with these options.

    Raises APIError (400) for an option that means nothing with this grammar or contradicts another.
    """
    for option in options:
        if not grammar.kind.is_json:
            raise _refuse(option, f"does not apply to a grammar of the kind {grammar.kind}")
        if option.field == _CLOSED:
            grammar = _close(grammar)
        elif grammar.whitespace is not None:
            raise _refuse(option, "cannot be combined with another option for whitespace")
        else:
            grammar = replace(grammar, whitespace="" if option.field == _NONE else option.value)
    return grammar


def _refuse(option: Option, reason: str) -> APIError:
    return APIError(400, f"{option.name} {reason}", param=option.name)


def _close(grammar: Grammar) -> Grammar:
    """Forbid properties that a schema does not list, where it lists some."""
    if grammar.kind is GrammarKind.JSON_OBJECT:
        return grammar
    value = msgspec.json.decode(grammar.text)
    is_tag = grammar.kind is GrammarKind.STRUCTURAL_TAG
    for schema in _schemas_in(list(_schemas_of_tag(value)) if is_tag else [value]):
        if "properties" in schema or "patternProperties" in schema:
            schema.setdefault("additionalProperties", False)
    return replace(grammar, text=msgspec.json.encode(value).decode())


def _schemas_of_tag(tag: dict[str, Any]) -> Iterator[Any]:
    structures = tag.get("structures")
    for structure in structures if isinstance(structures, list) else ():
        if isinstance(structure, dict):
            yield structure.get("schema")


def _schemas_in(left: list[Any]) -> Iterator[dict[str, Any]]:
    """These schemas and all schemas in them. Not recursive, because a client chooses the depth."""
    while left:
        schema = left.pop()
        if isinstance(schema, list):
            left += schema
        elif isinstance(schema, dict):
            yield schema
            named = (schema.get(keyword) for keyword in _OF_SCHEMAS)
            left += (one for each in named if isinstance(each, dict) for one in each.values())
            left += (schema[keyword] for keyword in _OF_SCHEMA if keyword in schema)
