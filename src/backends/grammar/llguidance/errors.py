"""Turns llguidance's messages into ones for a client."""

import re
from collections.abc import Sequence

LONGEST = 300
"""Maximum number of characters of a message."""
_EXCERPT = re.compile(r"\n\s*\d+ \| .*", re.DOTALL)
"""The excerpt of the grammar, with a mark at the error, that follows a message."""
_PLACE = re.compile(r"^at \d+\(\d+\): ")
_SCHEMA = "failed to compile JSON schema: "
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: \[(.*?)\]")
_UNKNOWN_FORMAT = re.compile(r"Unknown format: (.*)")
_KEYWORDS = (
    ("oneOf", "oneOf"),
    ("regex parse error", "pattern"),
    ("invalid regex", "pattern"),
    ("Resource '", "$ref"),
    ("$ref", "$ref"),
    ("Invalid type", "type"),
    ("patternProperty", "patternProperties"),
    ("anyOf is empty", "enum or anyOf"),
    ("recursion limit", "nested too deeply"),
)
"""(part of a message about a schema, the keyword that it does not name)"""
_STATES = {
    "NoExtensionBias": "no text can follow it, for example because a $ref leads to itself",
    "ParserTooComplex": "it is too complex",
    "LexerTooComplex": "its strings or patterns are too complex",
}


def explain(error: str) -> str:
    """The reason in an error, as the end of a sentence that begins with "the grammar"."""
    text = _EXCERPT.sub("", error.replace("<non-verbose/>", ""))
    text = " ".join(_PLACE.sub("", text.strip()).split())
    for state, meaning in _STATES.items():
        if text.startswith(state):
            text = meaning
    if _SCHEMA in text:
        text = _of_schema(text.partition(_SCHEMA)[2])
    return f"cannot be used: {text}"[:LONGEST]


def name_ignored(warnings: Sequence[str]) -> tuple[str, ...]:
    """The keywords that appear in the warnings about a schema that is not strict."""
    found: list[str] = []
    for text in warnings:
        names = _UNIMPLEMENTED.search(text)
        if names:
            found += names[1].replace('"', "").split(", ")
        else:
            found.append("format" if _UNKNOWN_FORMAT.match(text) else _keyword_of(text) or text)
    return tuple(dict.fromkeys(found))


def _of_schema(text: str) -> str:
    if names := _UNIMPLEMENTED.search(text):
        return f"{names[1].replace(chr(34), '')} is not supported"
    if name := _UNKNOWN_FORMAT.match(text):
        return f"format {name[1]!r} is not supported"
    if text.startswith("oneOf"):
        return "oneOf is not supported; use anyOf"
    keyword = _keyword_of(text)
    return f"{keyword}: {text}" if keyword and keyword not in text else text


def _keyword_of(text: str) -> str | None:
    return next((keyword for part, keyword in _KEYWORDS if part in text), None)
