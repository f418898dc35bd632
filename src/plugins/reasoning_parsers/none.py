"""No parser: reasoning stays part of the content."""

from __future__ import annotations

from ...plugin import AnswerText, ChatFormat, Parsing, Registry, hookimpl, kinds, rest_as_content

TOKENMILL_API = (1, 1)


class NoReasoningParser:
    """Finds no reasoning. "auto" takes it if no other parser fits the model's chat template."""

    needs_special_tokens = False
    parses = False
    marks = None

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        return []

    def parse(self, answer: AnswerText, prompt_end: str) -> Parsing:
        yield from rest_as_content(answer)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.REASONING_PARSER, "none", NoReasoningParser)
