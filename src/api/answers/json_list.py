"""Calls as a JSON list: for models whose own notation is not known, or has no JSON in it."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.contract.parsing.answer_parsers import Parsing, ToolCallParser
from ...core.contract.parsing.answer_text import AnswerText, rest_as_content, skip_space, take_next
from ...core.contract.parsing.answers import CallSyntax, ContentDelta, ToolDefinition
from ...core.contract.parsing.json_calls import json_call
from ...core.interfaces import ChatFormat

JSON_LIST = CallSyntax(
    first="[",
    begin='{"name": "NAME", "arguments": ',
    end="}",
    between=", ",
    last="]",
)


class JSONListParser:
    """Reads calls in the syntax JSON_LIST."""

    needs_special_tokens = False
    call_syntax = JSON_LIST

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        return []

    def parse(self, answer: AnswerText, tools: Sequence[ToolDefinition]) -> Parsing:
        names, index = {tool.name for tool in tools}, 0
        if (yield from take_next(answer, "[")):
            while (yield from json_call(answer, index, names)):
                index += 1
                if not (yield from take_next(answer, ",")):
                    yield from take_next(answer, "]")
                    break
            if not index:
                yield ContentDelta("[")
        if index:
            yield from skip_space(answer)
        yield from rest_as_content(answer)


def syntax_of(parser: ToolCallParser | None) -> CallSyntax:
    """The syntax in which a model is asked, or forced, to write calls."""
    return (parser and parser.call_syntax) or JSON_LIST
