"""Reads the grammar of an answer from the fields of a body that may have one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from ...core.errors import InvalidRequestError
from ...core.requests.grammar import Grammar, GrammarKind
from ..http.errors import APIError
from ..serving.reading.fields import Schema, StructuredOutputs

_STRUCTURED = "structured_outputs"
GrammarField = tuple[str, Callable[[], Grammar]]
"""The path of a field that has a grammar, and how to read it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarFields:
    """All fields of a body that have a grammar or an option of one."""

    found: Sequence[GrammarField] = ()
    options: Sequence[Option] = ()

    @property
    def param(self) -> str | None:
        """The field that errors about the grammar name; None: the body has no grammar."""
        if not self.found:
            return None
        path, _ = self.found[0]
        return _STRUCTURED if path.startswith(_STRUCTURED) else path

    def read(self) -> Grammar | None:
        """The grammar that the body asks for.

        Raises APIError (400) for two of them, and InvalidRequestError for one that is not valid;
        both name the field.
        """
        if not self.found:
            if self.options:
                name = self.options[0].name
                raise APIError(400, f"{name} needs a grammar", param=name)
            return None
        paths = [path for path, _ in self.found]
        if len(paths) > 1:
            text = f"{paths[0]} and {paths[1]} cannot be combined; give one of them"
            raise APIError(400, text, param=paths[1])
        with naming_field(self.param):
            return _with_options(self.found[0][1](), self.options)


@contextmanager
def naming_field(param: str | None) -> Iterator[None]:
    """Let errors about the grammar name the field that has it."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param != "grammar":
            raise
        raise InvalidRequestError(error.template, param=param) from error


def structured_fields(outputs: StructuredOutputs | None, *before: GrammarField) -> GrammarFields:
    """The fields of `structured_outputs`, after those of the same body `before` it.

    Raises APIError (400) if it has no grammar.
    """
    if outputs is None:
        return GrammarFields(found=before)
    found = given_fields(_STRUCTURED + ".", {name: getattr(outputs, name) for name in _READ})
    if not found:
        raise APIError(
            400, "structured_outputs has no grammar; give json, regex, choice, grammar, "
            "json_object or structural_tag", param=_STRUCTURED,
        )  # fmt: skip
    return GrammarFields(found=(*before, *found), options=_structured_options(outputs))


def given_fields(prefix: str, fields: Mapping[str, Any]) -> list[GrammarField]:
    """The fields that are given, of those with a grammar; `prefix` comes before their names."""
    return [
        (prefix + name, partial(_READ[name], value))
        for name, value in fields.items()
        if value is not None and (name, value) != ("json_object", False)
    ]


def schema_grammar(path: str, param: str, schema: Schema | None, strict: bool | None) -> Grammar:
    """The grammar of the schema of the field at this path. Raises InvalidRequestError."""
    if schema is None:
        raise InvalidRequestError(f"{path}.schema is missing", param=param)
    return Grammar.json_schema(schema, is_strict=bool(strict))


def structural_tag(given: Mapping[str, Any] | str) -> Grammar:
    """The grammar of a structural tag, or of its JSON text."""
    text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    return Grammar(kind=GrammarKind.STRUCTURAL_TAG, text=text)


def _schema(given: Any) -> Grammar:
    if isinstance(given, str):
        return Grammar(kind=GrammarKind.JSON_SCHEMA, text=given)
    return Grammar.json_schema(given)


def _context_free(text: str) -> Grammar:
    kind = GrammarKind.GBNF if "::=" in text else GrammarKind.LARK
    return Grammar(kind=kind, text=text)


_READ: Mapping[str, Callable[[Any], Grammar]] = {
    "json": _schema,
    "regex": Grammar.regex,
    "choice": Grammar.choice,
    "grammar": _context_free,
    "json_object": lambda _: Grammar.json_object(),
    "structural_tag": structural_tag,
}


def _structured_options(outputs: StructuredOutputs) -> list[Option]:
    """The options that `structured_outputs` sets."""
    given = {field: getattr(outputs, field) for field in (_WHITESPACE, _NONE, _CLOSED)}
    return [
        Option(name=f"structured_outputs.{field}", value=value)
        for field, value in given.items()
        if value is not None and value is not False
    ]


def _with_options(grammar: Grammar, options: Sequence[Option]) -> Grammar:
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
