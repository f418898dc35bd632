"""Reads one answer: from generated text to deltas of content, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...core.contract.parsing.answer_parsers import Parsing, ReasoningParser, ToolCallParser
from ...core.contract.parsing.answer_text import AnswerText, rest_as_content
from ...core.contract.parsing.answers import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallDelta,
    ToolDefinition,
)
from ...core.errors import CONTAINED, HookTimeoutError, RequestFailedError
from ...core.host.calling.guard import Guard
from .parser_guards import ParserGuards
from .transforms import AnswerChain

_PIECE = 4096
"""Characters. Taking text from the front copies the rest, so a parser gets a long text in pieces.
"""
_END: Final = object()


class AnswerReader:
    """Parses the text of one completion while it comes: `feed` each piece, then `finish`.

    `tools` are the functions that may be called; without them no calls are looked for.
    `prompt_end` is the end of the rendered prompt. `is_parallel` False keeps only the first call.
    `guards` count what the parsers do; `transforms` change what they find. Raises
    RequestFailedError if a parser hangs or a transform fails.
    """

    def __init__(
        self,
        *,
        reasoning: ReasoningParser | None = None,
        tool_calls: ToolCallParser | None = None,
        tools: Sequence[ToolDefinition] = (),
        prompt_end: str = "",
        is_parallel: bool = True,
        guards: ParserGuards | None = None,
        transforms: AnswerChain | None = None,
    ) -> None:
        self._transforms = transforms
        guard_of = (guards or ParserGuards()).of
        self._stages: list[_Stage] = []
        self.reasoning_spans: list[tuple[int, int]] = []
        """Beginning and end of each piece of reasoning in the text so far, in characters."""
        if reasoning is not None:
            text, guard = AnswerText(), guard_of(reasoning)
            parsing = self._located(text, guard.call(text, prompt_end))
            self._stages.append(_Stage(text, parsing, guard))
        if tool_calls is not None and tools:
            text, guard = AnswerText(), guard_of(tool_calls)
            self._stages.append(_Stage(text, guard.call(text, tools), guard))
        self._max_calls = None if is_parallel else 1
        self.has_calls = False
        """Whether the answer has tool calls so far."""

    def feed(self, text: str) -> list[Delta]:
        """The deltas that are certain because of this text."""
        deltas: list[Delta] = [ContentDelta(text)] if text else []
        for stage in self._stages:
            deltas = [new for delta in deltas for new in stage.feed(delta)]
        kept = self._kept(deltas)
        return kept if self._transforms is None else self._transforms.feed(kept)

    def finish(self) -> list[Delta]:
        """The last deltas: the text has come to its end."""
        deltas: list[Delta] = []
        for stage in self._stages:
            deltas = [new for delta in deltas for new in stage.feed(delta)] + stage.finish()
        kept = self._kept(deltas)
        if self._transforms is None:
            return kept
        return self._transforms.feed(kept) + self._transforms.finish()

    def _located(self, text: AnswerText, parsing: Parsing) -> Parsing:
        """The deltas of a parser. Also notes where its reasoning begins and ends."""
        for delta in parsing:
            if isinstance(delta, ReasoningDelta):
                end = text.num_taken
                begin = end - len(delta.text)
                if self.reasoning_spans and self.reasoning_spans[-1][1] == begin:
                    begin = self.reasoning_spans.pop()[0]
                self.reasoning_spans.append((begin, end))
            yield delta

    def _kept(self, deltas: list[Delta]) -> list[Delta]:
        kept = [
            delta
            for delta in deltas
            if not isinstance(delta, ToolCallDelta)
            or self._max_calls is None
            or delta.index < self._max_calls
        ]
        self.has_calls |= any(isinstance(delta, ToolCallDelta) for delta in kept)
        return kept


class _Stage:
    """One parser at work on the content that an earlier stage leaves."""

    def __init__(self, text: AnswerText, parsing: Parsing, guard: Guard) -> None:
        self._text = text
        self._parsing = parsing
        self._guard = guard

    def feed(self, delta: Delta) -> list[Delta]:
        """The deltas that result from one more delta; only content is parsed."""
        if not isinstance(delta, ContentDelta):
            return [delta]
        found: list[Delta] = []
        for start in range(0, len(delta.text), _PIECE):
            self._text.append(delta.text[start : start + _PIECE])
            found += self._pull()
        return found

    def finish(self) -> list[Delta]:
        self._text.close()
        return [*self._pull(), *_nonempty(self._text)]

    def _pull(self) -> list[Delta]:
        """The deltas up to the next wait. The text that a parser leaves or fails at is content."""
        found: list[Delta] = []
        try:
            while (delta := self._guard.resume(next, self._parsing, _END)) is not _END:
                if delta is None:
                    return found
                if not isinstance(delta, Delta):
                    raise TypeError(f"'parse' must yield deltas or None, got {delta!r:.100}")
                found.append(delta)
        except CONTAINED as error:
            self._guard.fail(error)
            if isinstance(error, HookTimeoutError):
                what = f"the answer could not be read: {self._guard.source} takes too long"
                raise RequestFailedError(what) from error
        self._parsing = rest_as_content(self._text)
        return found + _nonempty(self._text)


def _nonempty(text: AnswerText) -> list[Delta]:
    return [ContentDelta(text.take(len(text.unread)))] if text.unread else []
