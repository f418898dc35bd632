"""Reasoning between two marks, as of DeepSeek R1, Qwen 3 and many others.

<think>Oslo is in Norway.</think>It is in Norway.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...plugin import (
    AnswerText,
    ChatFormat,
    Parsing,
    ReasoningDelta,
    Registry,
    content_before,
    hookimpl,
    kinds,
    rest_as_content,
    skip_space,
    take_next,
)

TOKENMILL_API = (1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedReasoning:
    """Reasoning at the beginning of an answer, between two marks."""

    marks: tuple[str, str]
    needs_special_tokens: bool = True

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        missing = [mark for mark in self.marks if mark not in chat.source]
        return [f"the chat template has no {mark}" for mark in missing]

    def parse(self, answer: AnswerText, prompt_end: str) -> Parsing:
        start, end = self.marks
        is_open = prompt_end.rstrip().endswith(start)
        if is_open or (yield from take_next(answer, start)):
            yield from skip_space(answer)
            for delta in content_before(answer, (end,)):
                yield delta and ReasoningDelta(delta.text)
            yield from skip_space(answer)
        yield from rest_as_content(answer)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(
        kinds.REASONING_PARSER,
        "think",
        lambda: MarkedReasoning(marks=("<think>", "</think>")),
        aliases=("deepseek-r1", "qwen3", "deepseek-v3", "glm45"),
    )
    registry.offer(
        kinds.REASONING_PARSER,
        "gemma-think",
        lambda: MarkedReasoning(marks=("<|channel>thought", "<channel|>")),
        aliases=("gemma4",),
    )
    registry.offer(
        kinds.REASONING_PARSER,
        "mistral-think",
        lambda: MarkedReasoning(marks=("[THINK]", "[/THINK]")),
    )
