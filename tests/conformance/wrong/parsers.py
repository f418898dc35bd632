"""Wrong parsers of tool calls and of reasoning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tokenmill.plugin import (
    CallSyntax,
    ContentDelta,
    ReasoningDelta,
    ToolCallDelta,
    content_before,
    json_call,
    rest_as_content,
    take_next,
)
from tokenmill.testing.conformance.parsers import reasoning, tool_calls

from . import fails

OPEN = "<tool_call>"
ANSWERS = (
    (
        '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>',
        [("weather", {"city": "Oslo"})],
    ),
)


class Right:
    """Right: JSON in <tool_call>."""

    needs_special_tokens = False
    call_syntax = None

    def reasons_against(self, chat: Any) -> list[str]:
        return []

    def names(self, tools: Sequence[Any]) -> set[str]:
        return {tool.name for tool in tools}

    def parse(self, answer: Any, tools: Sequence[Any]) -> Iterator[Any]:
        index = 0
        while opened := (yield from content_before(answer, (OPEN,))):
            if (yield from json_call(answer, index, self.names(tools))):
                index += 1
                yield from take_next(answer, "</tool_call>")
            else:
                yield ContentDelta(opened)


@fails(tool_calls.check_it_answers_about_any_template)
class SaysOneReason(Right):
    def reasons_against(self, chat: Any) -> Any:
        return "not this model"


@fails(tool_calls.check_its_own_answers_are_read, answers=ANSWERS)
class FindsNothing(Right):
    def parse(self, answer: Any, tools: Sequence[Any]) -> Iterator[Any]:
        yield from rest_as_content(answer)


@fails(tool_calls.check_plain_text_is_content)
class Trims(Right):
    """Whitespace at the end of an answer is lost."""

    def parse(self, answer: Any, tools: Sequence[Any]) -> Iterator[Any]:
        while not answer.is_complete:
            yield None
        yield ContentDelta(answer.take(len(answer.unread)).strip())


@fails(tool_calls.check_cuts_change_nothing)
class LooksAtPieces(Right):
    """Removes whitespace at the beginning of every piece."""

    def parse(self, answer: Any, tools: Sequence[Any]) -> Iterator[Any]:
        while not answer.is_complete:
            yield ContentDelta(answer.take(len(answer.unread)).lstrip())
            yield None


@fails(tool_calls.check_cuts_change_nothing)
class NeverStops(Right):
    def parse(self, answer: Any, tools: Sequence[Any]) -> Iterator[Any]:
        while True:
            yield ContentDelta("")


@fails(tool_calls.check_calls_of_other_functions_are_content)
class CallsAnything(Right):
    """Takes the name that the model wrote, whatever it is."""

    def names(self, tools: Sequence[Any]) -> Any:
        return {"weather", "clock", "stranger"}


@fails(tool_calls.check_calls_are_in_order_and_of_known_functions)
class CountsFromOne(Right):
    def parse(self, answer: Any, tools: Sequence[Any]) -> Iterator[Any]:
        for delta in super().parse(answer, tools):
            if isinstance(delta, ToolCallDelta):
                yield ToolCallDelta(delta.index + 1, delta.name, delta.arguments)
            else:
                yield delta


@fails(tool_calls.check_calls_in_its_syntax_are_read)
class AsksForAnotherSyntax(Right):
    """Its parse() finds no calls in the syntax in which it asks for them."""

    call_syntax = CallSyntax(begin='[CALL]{"name": "NAME", "arguments": ', end="}")


@fails(tool_calls.check_answers_do_not_disturb_each_other)
class KeepsOneText(Right):
    """Has one place in which it keeps the unread text of all answers."""

    def __init__(self) -> None:
        self.kept = ""

    def parse(self, answer: Any, tools: Sequence[Any]) -> Iterator[Any]:
        self.kept = ""
        while not answer.is_complete:
            self.kept += answer.take(len(answer.unread))
            yield None
        yield ContentDelta(self.kept)


class RightReasoning:
    """Right: reasoning in <think>."""

    needs_special_tokens = False
    marks = ("<think>", "</think>")

    def reasons_against(self, chat: Any) -> list[str]:
        return []

    def parse(self, answer: Any, prompt_end: str) -> Iterator[Any]:
        if (yield from take_next(answer, "<think>")):
            for delta in content_before(answer, ("</think>",)):
                yield delta and ReasoningDelta(delta.text)
        yield from rest_as_content(answer)


@fails(reasoning.check_it_answers_about_any_template)
class GivesNoList(RightReasoning):
    def reasons_against(self, chat: Any) -> Any:
        return None


@fails(reasoning.check_its_own_answers_are_read, answers=[("<think>so</think>Oslo", "so", "Oslo")])
class FindsNoReasoning(RightReasoning):
    def parse(self, answer: Any, prompt_end: str) -> Iterator[Any]:
        yield from rest_as_content(answer)


@fails(reasoning.check_plain_text_is_content)
class ReasonsAlways(RightReasoning):
    """Takes all text before </think> as reasoning, also without <think>."""

    def parse(self, answer: Any, prompt_end: str) -> Iterator[Any]:
        for delta in content_before(answer, ("</think>",)):
            yield delta and ReasoningDelta(delta.text)
        yield from rest_as_content(answer)


@fails(reasoning.check_cuts_change_nothing)
class LooksAtTheFirstPiece(RightReasoning):
    def parse(self, answer: Any, prompt_end: str) -> Iterator[Any]:
        if answer.unread.startswith("<think>"):
            answer.take(len("<think>"))
            for delta in content_before(answer, ("</think>",)):
                yield delta and ReasoningDelta(delta.text)
        yield from rest_as_content(answer)


@fails(reasoning.check_answers_do_not_disturb_each_other)
class KeepsOneReasoning(RightReasoning):
    def __init__(self) -> None:
        self.kept = ""

    def parse(self, answer: Any, prompt_end: str) -> Iterator[Any]:
        return KeepsOneText.parse(self, answer, ())  # type: ignore[arg-type]
