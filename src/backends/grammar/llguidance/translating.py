"""Writes grammars of all kinds in the Lark dialect of llguidance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import gbnf_to_lark

from ....core.requests.grammar import Grammar, GrammarKind
from ..base import GrammarError

OPTIONS = '\n%llguidance {"no_forcing": true}'
"""Allow all tokens that may come next. Otherwise, where only one text may come, llguidance would
choose one of them, and would need the model's own tokenizer for that."""
WHITESPACE = r"[ \t\n\r]{1,20}"
"""Between the parts of a JSON answer. Without a maximum, a model may write blanks for ever."""


def translate(grammar: Grammar) -> str:
    """The grammar as llguidance reads it. Raises GrammarError for one that it cannot read."""
    try:
        return _TRANSLATE[grammar.kind](grammar) + OPTIONS
    except GrammarError:
        raise
    except KeyError as error:
        raise GrammarError(f"of the kind {grammar.kind} lacks {error}") from error
    except Exception as error:  # of llguidance's converters, which raise it for a wrong text
        raise GrammarError(f"of the kind {grammar.kind} is not valid: {error}") from error


def _json_schema(grammar: Grammar) -> str:
    return f"start: %json {_with_options(msgspec.json.decode(grammar.text), grammar)}"


def _json_object(grammar: Grammar) -> str:
    return f"start: %json {_with_options({'type': 'object'}, grammar)}"


def _with_options(schema: Any, grammar: Grammar) -> str:
    """The schema as JSON, with our options instead of its own."""
    if schema is False:
        raise GrammarError("allows no answer: its schema is false")
    options = {
        "coerce_one_of": False,
        "lenient": not grammar.is_strict,
        **_whitespace_option(grammar.whitespace),
    }
    fields = {} if schema is True else schema
    return msgspec.json.encode({**fields, "x-guidance": options}).decode()


def _whitespace_option(whitespace: str | None) -> Mapping[str, Any]:
    """A pattern wins over `whitespace_flexible`, so only one of them is given."""
    if whitespace == "":
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": WHITESPACE if whitespace is None else whitespace}


def _regex(grammar: Grammar) -> str:
    """The whole answer matches anyway, so anchors at both ends mean nothing."""
    pattern = grammar.text.removeprefix("^")
    if pattern.endswith("$") and not pattern.endswith("\\$"):
        pattern = pattern[:-1]
    return _regex_rule(pattern)


def _choice(grammar: Grammar) -> str:
    texts = msgspec.json.decode(grammar.text, type=list[str])
    return _regex_rule("|".join(map(_escape, texts)))


def _regex_rule(pattern: str) -> str:
    made = msgspec.json.decode(LLMatcher.grammar_from_regex(pattern))
    rule: str = made["grammars"][0]["lark_grammar"]
    return rule


def _escape(text: str) -> str:
    return "".join(one if one.isalnum() else f"\\x{{{ord(one):x}}}" for one in text)


def _structural_tag(grammar: Grammar) -> str:
    """vLLM's form: a tag begins with one of the triggers, which no other text contains."""
    given: Mapping[str, Any] = msgspec.json.decode(grammar.text)
    triggers = given["triggers"]
    tags = [_tag(one, triggers, grammar) for one in given["structures"]]
    return StructTag.to_grammar(tags, assume_special=False)


def _tag(structure: Mapping[str, Any], triggers: list[str], grammar: Grammar) -> StructTag:
    begin = structure["begin"]
    trigger = next((one for one in triggers if begin.startswith(one)), None)
    if trigger is None:
        raise GrammarError(f"has no trigger for the tag {begin!r}")
    schema = _with_options(structure["schema"], grammar)
    return StructTag(trigger=trigger, begin=begin, grammar=schema, end=structure["end"])


_TRANSLATE: Mapping[GrammarKind, Callable[[Grammar], str]] = {
    GrammarKind.JSON_OBJECT: _json_object,
    GrammarKind.JSON_SCHEMA: _json_schema,
    GrammarKind.REGEX: _regex,
    GrammarKind.CHOICE: _choice,
    GrammarKind.LARK: lambda grammar: grammar.text,
    GrammarKind.GBNF: lambda grammar: gbnf_to_lark(grammar.text),
    GrammarKind.STRUCTURAL_TAG: _structural_tag,
}
