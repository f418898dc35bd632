"""Reasoning of gpt-oss, whose answers are messages on the channels analysis, commentary and final.

<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Oslo.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...plugin import (
    AnswerText,
    ChatFormat,
    ContentDelta,
    Delta,
    Parsing,
    ReasoningDelta,
    Registry,
    content_before,
    find,
    hookimpl,
    kinds,
    rest_as_content,
    take_next,
)

TOKENMILL_API = (1, 1)
START, CHANNEL, BODY = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
_FUNCTION = re.compile(r"to=(functions\.[\w.-]+)")


class GptOssReasoningParser:
    """The channel analysis is reasoning. Messages to functions stay, for the tool call parser."""

    needs_special_tokens = True
    marks = None

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        missing = [mark for mark in (CHANNEL, BODY, "analysis") if mark not in chat.source]
        return [f"the chat template has no {mark}" for mark in missing]

    def parse(self, answer: AnswerText, prompt_end: str) -> Parsing:
        while (yield from take_next(answer, CHANNEL)) or (yield from take_next(answer, START)):
            end = yield from find(answer, BODY)
            if end < 0:
                break
            header = answer.take(end + len(BODY))
            function = _FUNCTION.search(header)
            if function:
                yield ContentDelta(f"{CHANNEL}commentary to={function[1]}{BODY}")
            is_reasoning = "analysis" in header and not function
            yield from _body(answer, is_reasoning=is_reasoning)
            if function:
                yield ContentDelta(ENDS[-1])
        yield from rest_as_content(answer)


def _body(answer: AnswerText, *, is_reasoning: bool) -> Iterator[Delta | None]:
    for delta in content_before(answer, ENDS):
        yield ReasoningDelta(delta.text) if delta and is_reasoning else delta


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(
        kinds.REASONING_PARSER, "gpt-oss", GptOssReasoningParser, aliases=("openai-gptoss",)
    )
