"""Grammars of answers with calls: calls and nothing else, or free text in which calls are valid."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.contract.parsing.answer_parsers import ReasoningParser
from ...core.contract.parsing.answers import CallSyntax, ToolDefinition
from ...core.interfaces import Tokenizer
from ...core.requests.grammar import Grammar, GrammarKind
from .tools import ToolUse

_COMPOSED = {"$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties"}
"""Keywords that may allow properties besides `properties`."""


def grammar_of(
    use: ToolUse,
    syntax: CallSyntax,
    reasoning: ReasoningParser | None,
    prompt_end: str,
    tokenizer: Tokenizer,
) -> Grammar:
    """The grammar of an answer, in Lark with JSON schemas: of calls and nothing else if they are
    demanded, otherwise of any text, in which a call that has begun is valid.

    A model that reasons may do so first. `prompt_end` is the end of the rendered prompt, which may
    have opened or closed the reasoning. Raises InvalidRequestError if the grammar is too large.
    """
    marks = reasoning.marks if reasoning is not None else None
    before, *thoughts = _reasoning(marks, prompt_end.rstrip(), tokenizer) if marks else [""]
    is_single = use.named is not None or not use.is_parallel
    if use.mode == "required":
        start = [_calls_only(syntax, before, is_single)]
    else:
        start = list(_free_text(use.callable, syntax, before))
    rules = (*start, *_calls(use, syntax), *thoughts)
    return Grammar(kind=GrammarKind.LARK, text="\n".join(rules))


def _calls_only(syntax: CallSyntax, before: str, is_single: bool) -> str:
    more = "" if is_single else f"({_literal(syntax.between)} call)*"
    return f"start: {before} {_literal(syntax.first)} call {more} {_literal(syntax.last)}"


def _free_text(tools: Sequence[ToolDefinition], syntax: CallSyntax, before: str) -> Iterator[str]:
    """A call begins with its trigger. The text before it is matched lazily, so it has none."""
    yield f"start: {f'({before})?' if before else ''} call* TEXT"
    yield "TEXT: /(?s:.*)/"
    for number, tool in enumerate(tools):
        yield f"begin_{number}[lazy]: TEXT {_literal(syntax.trigger.replace('NAME', tool.name))}"


def _calls(use: ToolUse, syntax: CallSyntax) -> Iterator[str]:
    tools, is_demanded = use.callable, use.mode == "required"
    yield f"call: {' | '.join(f'call_{number}' for number in range(len(tools)))}"
    for number, tool in enumerate(tools):
        begin = _literal(syntax.begin.replace("NAME", tool.name))
        if not is_demanded:
            rest = syntax.begin.removeprefix(syntax.trigger)
            begin = f"begin_{number} {_literal(rest.replace('NAME', tool.name))}"
        schema = json.dumps(_schema(tool, tool.strict and is_demanded), ensure_ascii=False)
        yield f"call_{number}: {begin} arguments_{number} {_literal(syntax.end)}"
        yield f"arguments_{number}: %json {schema}"


def _reasoning(marks: tuple[str, str], prompt_end: str, tokenizer: Tokenizer) -> Iterator[str]:
    """The part of the grammar before the calls, then the rules that this part needs."""
    start, end = marks
    if prompt_end.endswith(end):
        yield ""
        return
    yield "thought SPACE?" if prompt_end.endswith(start) else "(opening thought SPACE?)?"
    yield f"opening: {_special(start, tokenizer) or _literal(start)}"
    closing = _special(end, tokenizer)
    lazily = "" if closing else f"[suffix={_literal(end)}]"
    yield f"thought{lazily}: /(?s:.*)/ {closing}"
    yield r"SPACE: /\s{1,4}/"


def _special(mark: str, tokenizer: Tokenizer) -> str:
    """The notation of a grammar for a mark that is a special token; "" if it is ordinary text."""
    ids = tokenizer.encode(mark, add_special_tokens=False)
    is_special = len(ids) == 1 and not tokenizer.decode(ids, skip_special_tokens=True)
    return f"<[{ids[0]}]>" if is_special else ""


def _schema(tool: ToolDefinition, is_strict: bool) -> Mapping[str, Any]:
    """The schema of the arguments: an object, written without needless whitespace.

    It has only the properties that it names, unless it says otherwise: a small model invents more.
    """
    is_plain = "properties" in tool.parameters and not _COMPOSED & tool.parameters.keys()
    closed = {"additionalProperties": False} if is_plain else {}
    options = {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
        "lenient": not is_strict,
    }
    return {**closed, **tool.parameters, "type": "object", "x-guidance": options}


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
