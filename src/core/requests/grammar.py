"""The data type of a grammar: the texts that a request's answer may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import msgspec

from ..errors import InvalidRequestError
from .checked_once import checked_once

MAX_GRAMMAR = 1 << 17
"""Characters of a grammar's text. The largest schemas in public collections have half as many."""
MAX_CHOICES = 1024
"""Texts of a grammar of the kind `choice`."""


class GrammarKind(StrEnum):
    """The language in which a grammar's text is written."""

    JSON_OBJECT = "json_object"
    """Any JSON object. The text is empty."""
    JSON_SCHEMA = "json_schema"
    """JSON that a schema allows. The text is the schema, as JSON."""
    REGEX = "regex"
    """Text that a regular expression matches as a whole."""
    CHOICE = "choice"
    """One of several texts. The text is a JSON list of them."""
    LARK = "lark"
    """A context-free grammar in the syntax of Lark."""
    GBNF = "gbnf"
    """A context-free grammar in the syntax of llama.cpp."""
    STRUCTURAL_TAG = "structural_tag"
    """Free text with tags; text inside of tags follows a schema. The text is vLLM's JSON object:
    `structures` (a list of `begin`, `schema`, `end`) and `triggers`."""

    @property
    def is_json(self) -> bool:
        """Whether answers, or parts of them, are JSON."""
        return self in (self.JSON_OBJECT, self.JSON_SCHEMA, self.STRUCTURAL_TAG)


@checked_once()
@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A grammar that an answer must follow. It does not depend on a model or a grammar backend.

    Whether the grammar itself can be used is known only after it is compiled, before the request is
    admitted. Raises InvalidRequestError (`param` is "grammar") for an unknown kind, a text that is
    too long, and JSON that is not valid.
    """

    kind: GrammarKind
    """The language of `text`."""
    text: str = ""
    """The grammar itself, at most 131,072 characters; empty for `json_object`."""
    is_strict: bool = True
    """Whether a JSON schema with a keyword that the grammar backend does not support is refused. If
    not, that keyword is ignored."""
    whitespace: str | None = None
    """Regular expression of the text between the parts of JSON. None: the grammar backend chooses
    it; empty: there is none."""

    def _check(self) -> None:
        try:
            object.__setattr__(self, "kind", GrammarKind(self.kind))
        except ValueError:
            known = ", ".join(GrammarKind)
            raise _invalid(f"has the unknown kind {self.kind!r}; known: {known}") from None
        if not isinstance(self.text, str):
            raise _invalid(f"needs a text, got {type(self.text).__name__}")
        if self.num_characters > MAX_GRAMMAR:
            raise _invalid(
                f"has {self.num_characters} characters; at most {MAX_GRAMMAR} are allowed"
            )
        if self.whitespace is not None and not self.kind.is_json:
            raise _invalid(f"of the kind {self.kind} has no whitespace between parts of JSON")
        _check_text(self)

    @property
    def num_characters(self) -> int:
        """The length of all its texts."""
        return len(self.text) + len(self.whitespace or "")

    @classmethod
    def json_object(cls) -> Self:
        """Any JSON object."""
        return cls(kind=GrammarKind.JSON_OBJECT)

    @classmethod
    def json_schema(cls, schema: object, *, is_strict: bool = True) -> Self:
        """JSON that a schema allows. `schema` is a dict or a bool, as in a parsed JSON schema."""
        return cls(kind=GrammarKind.JSON_SCHEMA, text=_encode(schema), is_strict=is_strict)

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Text that a regular expression matches as a whole."""
        return cls(kind=GrammarKind.REGEX, text=pattern)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Self:
        """One of several texts."""
        return cls(kind=GrammarKind.CHOICE, text=_encode(list(texts)))


def _check_text(grammar: Grammar) -> None:
    kind, text = grammar.kind, grammar.text
    if kind is GrammarKind.JSON_OBJECT:
        if text:
            raise _invalid("of the kind json_object has no text")
    elif not text:
        raise _invalid(f"of the kind {kind} needs a text")
    elif kind is GrammarKind.JSON_SCHEMA:
        if not isinstance(_decode(text, kind), dict | bool):
            raise _invalid("must be a JSON schema: an object, true or false")
    elif kind is GrammarKind.CHOICE:
        _check_choices(_decode(text, kind))
    elif kind is GrammarKind.STRUCTURAL_TAG and not isinstance(_decode(text, kind), dict):
        raise _invalid("of the kind structural_tag must be a JSON object")


def _check_choices(texts: Any) -> None:
    if not isinstance(texts, list) or not 0 < len(texts) <= MAX_CHOICES:
        raise _invalid(f"of the kind choice must be a list of 1 to {MAX_CHOICES} texts")
    if not all(isinstance(text, str) and text for text in texts):
        raise _invalid("of the kind choice has an item that is not a text, or is empty")


def _decode(text: str, kind: GrammarKind) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        raise _invalid(f"of the kind {kind} is not valid JSON") from None
    except RecursionError:
        raise _invalid("is nested too deeply") from None


def _encode(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid(f"cannot be written as JSON: {error}") from error


def _invalid(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"the grammar {what}", param="grammar")
