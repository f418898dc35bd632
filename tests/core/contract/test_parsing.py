"""What a parser declares, and what becomes of an answer whose parser fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tokenmill.api.parsing.answer_reader import AnswerReader
from tokenmill.core.contract.parsing.answer_parsers import Parsing
from tokenmill.core.contract.parsing.answer_text import AnswerText
from tokenmill.core.contract.parsing.answers import CallSyntax, ContentDelta, ToolDefinition


@pytest.mark.parametrize("trigger", ['{"name": ', '"NAME"', '{"name": "NAME", "arguments": {}'])
def test_a_trigger_is_a_beginning_with_the_name(trigger: str) -> None:
    begin = '{"name": "NAME", "arguments": '
    with pytest.raises(ValueError, match="which must have NAME in it"):
        CallSyntax(begin=begin, end="}", trigger=trigger)
    assert CallSyntax(begin=begin, end="}", trigger='{"name": "NAME"').trigger


class Failing:
    """Takes a character, and fails at the next one."""

    needs_special_tokens = False
    call_syntax = None

    def reasons_against(self, chat: object) -> list[str]:
        return []

    def parse(self, answer: AnswerText, tools: Sequence[ToolDefinition]) -> Parsing:
        yield ContentDelta(answer.take(1))
        raise KeyError("planted")


def test_the_text_at_which_a_parser_fails_is_content() -> None:
    tool = ToolDefinition(name="weather")
    reader = AnswerReader(tool_calls=Failing(), tools=[tool])
    assert [*reader.feed("abc"), *reader.feed("de"), *reader.finish()] == [
        ContentDelta("a"),
        ContentDelta("bc"),
        ContentDelta("de"),
    ]
