"""Reads an answer with a parser, in pieces, as the API does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hypothesis import HealthCheck, settings

from tokenmill.api.parsing.answer_reader import AnswerReader
from tokenmill.core.contract.parsing.answer_parsers import ReasoningParser, ToolCallParser
from tokenmill.core.contract.parsing.answers import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallDelta,
    ToolDefinition,
)

BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For a machine that is busy with other tests."""
TOOLS = tuple(ToolDefinition(name=name) for name in ("weather", "time.now", "find-it"))
Read = tuple[str, str, list[tuple[str, str]]]
"""Content, reasoning, and name and arguments of the calls."""


def deltas_of(
    pieces: Iterable[str],
    *,
    tools: ToolCallParser | None = None,
    reasoning: ReasoningParser | None = None,
    prompt_end: str = "",
    offered: Sequence[ToolDefinition] = TOOLS,
) -> Iterator[Delta]:
    """The deltas of an answer that comes in these pieces."""
    reader = AnswerReader(
        tool_calls=tools, reasoning=reasoning, tools=offered, prompt_end=prompt_end
    )
    for piece in pieces:
        yield from reader.feed(piece)
    yield from reader.finish()


def joined(deltas: Iterable[Delta]) -> Read:
    """The whole answer of these deltas, which must be in a valid order."""
    content, reasoning = "", ""
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                content += text
            case ReasoningDelta(text):
                reasoning += text
            case ToolCallDelta(index, name, arguments):
                if name is not None:
                    assert index == len(calls), "calls are numbered in order"
                    calls.append((name, ""))
                assert index == len(calls) - 1, "a call goes on after the next one began"
                calls[index] = (calls[index][0], calls[index][1] + arguments)
    return content, reasoning, calls


def cut(text: str, places: Iterable[int]) -> list[str]:
    """The text cut at these places."""
    ends = [*sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
