"""Tool calls of models whose own notation is not known: JSON objects anywhere in the answer.

{"name": "weather", "arguments": {"city": "Oslo"}}
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from ...plugin import (
    AnswerText,
    CallSyntax,
    ChatFormat,
    ContentDelta,
    Parsing,
    Registry,
    ToolDefinition,
    content_before,
    hookimpl,
    json_call,
    kinds,
    skip_space,
    take_end,
    take_next,
)

TOKENMILL_API = (1, 1)
_FENCES = {"": (), "```json\n": ("```",), "```\n": ("```",)} | {
    f"<tool_call>{space}": ("</tool_call>",) for space in ("", "\n")
}
_LISTS = {"": (), "[": ("]",), "[\n": ("]",), "[\n  ": ("]",)}
_CLOSINGS = {
    fence + opening: (*closing, *end)
    for fence, end in _FENCES.items()
    for opening, closing in _LISTS.items()
}
"""Texts in which small models wrap calls, with the texts that end them."""
_OPENINGS = tuple(opening + "{" for opening in _CLOSINGS)
_LONGEST_HEAD = 256
"""Characters. A text that does not begin like a call within them is content at once."""


class GenericToolParser:
    """JSON objects with name and arguments, as a system message asks for; fits every model."""

    needs_special_tokens = False
    describes_tools = True
    call_syntax = CallSyntax(
        first="[",
        begin='{"name": "NAME", "arguments": ',
        end="}",
        between=", ",
        last="]",
        trigger='{"name": "NAME"',
    )

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        return []

    def parse(self, answer: AnswerText, tools: Sequence[ToolDefinition]) -> Parsing:
        names, index = {tool.name for tool in tools}, 0
        heads = tuple(f'{{"name":"{name}"' for name in names)
        heads += ('{"arguments":', '{"parameters":')
        while opened := (yield from content_before(answer, _OPENINGS)):
            answer.unread = "{" + answer.unread
            begun, comma = index, ""
            while (yield from _may_be_call(answer, heads)) and (
                yield from json_call(answer, index, names)
            ):
                index += 1
                comma = "," if (yield from take_next(answer, ",")) else ""
            if index == begun:
                answer.take(1)
                yield ContentDelta(opened)
                continue
            if comma:
                yield ContentDelta(comma)
            for closing in _CLOSINGS[opened.lstrip()[:-1]]:
                yield from take_end(answer, closing)
            if not comma:
                yield from skip_space(answer)


def _may_be_call(answer: AnswerText, heads: tuple[str, ...]) -> Generator[None, None, bool]:
    """Wait until the text at the front begins like a call, or can no longer do so.

    So braces in a program or another JSON object are not held back.
    """
    while True:
        begin = "".join(answer.unread[:_LONGEST_HEAD].split())
        if begin.startswith(heads):
            return True
        is_open = len(answer.unread) < _LONGEST_HEAD and not answer.is_complete
        if not is_open or not any(head.startswith(begin) for head in heads):
            return False
        yield None


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.TOOL_CALL_PARSER, "generic", GenericToolParser)
