"""Reads the grammar of an answer from the fields that OpenAI and vLLM have for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from ....core.errors import InvalidRequestError
from ....core.grammar import Grammar, GrammarKind
from ...http.errors import APIError
from .bodies import ChatBody, ResponseFormat, SamplingFields
from .grammar_options import read_options, with_options

Found = tuple[str, Callable[[], Grammar]]
"""A field's name, and how to read its grammar."""


def read_grammar(body: SamplingFields) -> Grammar | None:
    """The grammar that a body asks for.

    Raises APIError (400) for two of them, and InvalidRequestError for one that is not valid; both
    name the field.
    """
    found, options = _find(body), read_options(body)
    if not found:
        if options:
            raise APIError(400, f"{options[0].name} needs a grammar", param=options[0].name)
        return None
    names = [name for name, _ in found]
    if len(names) > 1:
        raise APIError(
            400, f"{names[0]} and {names[1]} cannot be combined; give one of them", param=names[1]
        )
    with naming_field(body):
        return with_options(found[0][1](), options)


@contextmanager
def naming_field(body: SamplingFields) -> Iterator[None]:
    """Let errors about the grammar name the field that has it."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param != "grammar":
            raise
        raise InvalidRequestError(str(error), param=_field(body)) from error


def ignored_paths(body: SamplingFields, keywords: Sequence[str]) -> list[str]:
    """The paths that the header of ignored fields has for keywords of the body's grammar."""
    return [f"{_field(body)}.{keyword}" for keyword in keywords]


def _field(body: SamplingFields) -> str | None:
    found = _find(body)
    if found:
        return found[0][0].partition(".")[0]
    return "tools" if isinstance(body, ChatBody) and body.tools else None


def _find(body: SamplingFields) -> list[Found]:
    """All grammars of a body, by the names of their fields."""
    found: list[Found] = []
    response_format, outputs = body.response_format, body.structured_outputs
    if response_format is not None and response_format.type != "text":
        found.append(("response_format", lambda: _of_format(response_format)))
    if outputs is not None:
        parts = {name: getattr(outputs, name) for name in _READ}
        given = _given("structured_outputs.", parts)
        if not given:
            raise APIError(
                400, "structured_outputs has no grammar; give json, regex, choice, grammar, "
                "json_object or structural_tag", param="structured_outputs",
            )  # fmt: skip
        found += given
    older = ("json", "regex", "choice", "grammar")
    return found + _given("guided_", {name: getattr(body, f"guided_{name}") for name in older})


def _given(prefix: str, fields: Mapping[str, Any]) -> list[Found]:
    return [
        (prefix + name, lambda read=_READ[name], value=value: read(value))  # type: ignore[misc]
        for name, value in fields.items()
        if value is not None and (name, value) != ("json_object", False)
    ]


def _of_format(given: ResponseFormat) -> Grammar:
    if given.type == "json_object":
        return Grammar.json_object()
    if given.type == "structural_tag":
        return _structural_tag({"structures": given.structures, "triggers": given.triggers})
    schema = given.json_schema
    if schema is None or schema.schema is None:
        raise InvalidRequestError(
            "response_format.json_schema.schema is missing", param="response_format"
        )
    return Grammar.json_schema(schema.schema, is_strict=bool(schema.strict))


def _schema(given: Any) -> Grammar:
    if isinstance(given, str):
        return Grammar(kind=GrammarKind.JSON_SCHEMA, text=given)
    return Grammar.json_schema(given)


def _context_free(text: str) -> Grammar:
    kind = GrammarKind.GBNF if "::=" in text else GrammarKind.LARK
    return Grammar(kind=kind, text=text)


def _structural_tag(given: Mapping[str, Any] | str) -> Grammar:
    text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    return Grammar(kind=GrammarKind.STRUCTURAL_TAG, text=text)


_READ: Mapping[str, Callable[[Any], Grammar]] = {
    "json": _schema,
    "regex": Grammar.regex,
    "choice": Grammar.choice,
    "grammar": _context_free,
    "json_object": lambda _: Grammar.json_object(),
    "structural_tag": _structural_tag,
}
