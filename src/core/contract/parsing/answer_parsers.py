"""The parsers that find reasoning and tool calls in answers; see docs/hooks.md.

A parser's `parse` is a generator function. It reads an AnswerText from the front, yields a delta
for everything that is certain, and yields None when it needs more text. So it is written like a
parser of a complete text, and works while the model still generates. answer_text.py and
json_calls.py have functions that read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ...interfaces import ChatFormat
from .answer_text import AnswerText
from .answers import CallSyntax, Delta, ToolDefinition

Parsing = Iterator[Delta | None]
"""The deltas of one answer; None: the parser needs more text, or the end of it."""


class ToolCallParser(Protocol):
    """Finds the tool calls of one family of models. A factory returns it.

    One parser reads all answers, several at a time: it keeps no state outside `parse`. It may also
    have `describes_tools`, `call_id_length` and `parses`; see core/members.py.
    """

    @property
    def needs_special_tokens(self) -> bool:
        """Whether special tokens mark the calls. Then they are part of the text of the answer;
        the model always sees them."""
        ...

    @property
    def call_syntax(self) -> CallSyntax | None:
        """The syntax of calls, in which the model is made to write if `tool_choice` demands a call,
        and asked to if its chat template does not show functions. None: another parser, one that
        `describes_tools`, stands in for such calls."""
        ...

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        """Every reason why a model with this chat template does not write such calls.

        "auto" takes the first parser without reasons. Called once, at start.
        """
        ...

    def parse(self, answer: AnswerText, tools: Sequence[ToolDefinition]) -> Parsing:
        """Yield the content and the calls of one answer.

        Text that only looks like a call, or that calls a function that is not in `tools`, is
        content. The result must not depend on how the text is cut into pieces. Called once per
        answer, on the event loop of the API: it must not block. On error: the unread rest of the
        answer is content.
        """
        ...


class ReasoningParser(Protocol):
    """Separates reasoning and content of one family of models. A factory returns it.

    Like a ToolCallParser, it keeps no state, and may have `parses`. A ToolCallParser reads its
    content afterwards.
    """

    @property
    def needs_special_tokens(self) -> bool:
        """Whether special tokens mark the reasoning."""
        ...

    @property
    def marks(self) -> tuple[str, str] | None:
        """The texts before and after the reasoning. Calls that `tool_choice` demands may come after
        them; None: such calls come without reasoning."""
        ...

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        """Every reason why a model with this chat template does not write reasoning like this."""
        ...

    def parse(self, answer: AnswerText, prompt_end: str) -> Parsing:
        """Yield the reasoning and the content of one answer; see ToolCallParser.parse.

        `prompt_end` is the end of the rendered prompt, which may have opened the reasoning.
        """
        ...
