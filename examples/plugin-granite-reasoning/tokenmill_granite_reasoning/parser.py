"""Reads the answers of IBM's Granite 3.2 and 3.3.

Here is my thought process: Oslo is in Norway. Here is my response: It is in Norway.
"""

from tokenmill.plugin import (
    AnswerText,
    ChatFormat,
    Parsing,
    ReasoningDelta,
    content_before,
    rest_as_content,
    skip_space,
    take_next,
)

STARTS = ("Here is my thought process:", "Here's my thought process:")
ENDS = ("Here is my response:", "Here's my response:")


class GraniteReasoning:
    """Reasoning at the beginning of an answer, between two sentences of either form."""

    marks = (STARTS[0], ENDS[0])
    needs_special_tokens = False  # the sentences are ordinary text

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        missing = "the chat template does not ask for a thought process"
        return [] if any(start in chat.source for start in STARTS) else [missing]

    def parse(self, answer: AnswerText, prompt_end: str) -> Parsing:
        for start in STARTS:
            if (yield from take_next(answer, start)):
                yield from skip_space(answer)
                for delta in content_before(answer, ENDS):
                    yield delta and ReasoningDelta(delta.text)
                yield from skip_space(answer)
                break
        yield from rest_as_content(answer)
