"""Reads the answers of a chat: from generated text to pieces of content, reasoning and calls."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Literal

from ...core.contract.parsing.answer_parsers import ToolCallParser
from ...core.contract.parsing.answers import Delta, ToolCallDelta
from ...core.errors import InvalidRequestError, named
from ...core.outputs import CompletionOutput, FinishReason, RequestMetrics
from ...core.plan import TokenLogprobs
from ...core.requests.grammar import Grammar
from ...core.requests.sampling_params import SamplingParams
from ..http.errors import APIError
from ..parsing.answer_reader import AnswerReader
from ..parsing.transforms import TransformedAnswers
from ..serving.answers import Outputs, TokenCounts
from ..serving.context import AppContext
from .enforcing import grammar_of
from .sampling import with_thinking_budget
from .tools import ToolUse, parser_of

_PROMPT_END = 16
"""Tokens of the prompt's end that a reasoning parser sees: enough for a line that the chat template
adds."""
_PIECE = 4096
"""Characters that are parsed in one turn of the event loop, in 0.5 to 7 ms."""


EndReason = Literal["stop", "length", "tool_calls"]
END_REASONS: dict[FinishReason | None, EndReason] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
}
"""A request that was ended early has none: `check_ends` makes it an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """New output of one choice: a part of a streamed answer, or all of a whole one."""

    index: int
    """Number of the choice."""
    deltas: Sequence[Delta]
    """In the order of the text. Two that follow each other belong to different texts or calls."""
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs]
    """One per token, or none."""
    reason: EndReason | None
    """Why the choice ended; None: it goes on."""
    stop: str | int | None
    """The stop string or token that ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end of an answer with one choice."""

    reason: EndReason
    stop: str | int | None
    counts: TokenCounts
    metrics: RequestMetrics | None


class ChatReading:
    """Parses the choices of one chat.

    Raises APIError (400) if calls could not be found in the answer.
    """

    def __init__(
        self,
        tools: ToolUse,
        thinking_budget: int | None,
        context: AppContext,
        prompt_token_ids: Sequence[int],
        transformed: TransformedAnswers | None,
    ) -> None:
        self._parser = parser_of(tools, context.parsers)
        self._transformed = transformed
        self._tools = tools
        self._parsers = context.parsers
        self._tokenizer = context.engine.tokenizer
        self._budget = thinking_budget
        self._prompt_end = ""
        if self._parsers.reasoning is not None:
            end = list(prompt_token_ids[-_PROMPT_END:])
            self._prompt_end = self._tokenizer.decode(end, skip_special_tokens=False)
        self._skips_special_tokens = True
        self.is_guided = False
        """Whether a grammar only keeps calls valid: the answer may also do without it."""
        self._readers: dict[int, AnswerReader] = {}
        self._token_ids: dict[int, list[int]] = {}
        self._ahead: dict[int, list[Delta]] = {}
        """The pieces that `read_ahead` has found, by choice."""

    def adjust(self, params: SamplingParams) -> SamplingParams:
        """Enforce calls if the request demands them, and keep special tokens in the text if a
        parser needs them.

        Raises APIError (400) if the answer already has another grammar.
        """
        if self._tools.mode == "required":
            if params.grammar is not None:
                raise APIError(
                    400, "a tool_choice that enforces a call cannot be combined with "
                    f"{named('response_format')} or structured_outputs; remove one of them",
                    param="tool_choice",
                )  # fmt: skip
            params = params.with_changes(grammar=self._grammar())
        elif params.grammar is not None:
            self._prompt_end = ""  # the grammar holds from the first token: nothing is reasoning
        elif self._parser is not None and _triggers(self._parser):
            with suppress(InvalidRequestError):  # the schemas may be too large for a grammar
                params = params.with_changes(grammar=self._grammar())
                self.is_guided = True
        if params.grammar is None or self._tools.mode == "required" or self.is_guided:
            params = with_thinking_budget(
                params, self._budget, self._parsers, self._prompt_end, self._tokenizer
            )
        used = (self._parsers.reasoning, self._parser)
        if any(parser.needs_special_tokens for parser in used if parser is not None):
            params = params.with_changes(skip_special_tokens=False)
        self._skips_special_tokens = params.skip_special_tokens
        return params

    def _grammar(self) -> Grammar:
        assert self._parser is not None and self._parser.call_syntax is not None
        return grammar_of(
            self._tools,
            self._parser.call_syntax,
            self._parsers.reasoning,
            self._prompt_end,
            self._tokenizer,
        )

    def piece(self, found: CompletionOutput) -> Piece:
        """The new part of a choice."""
        deltas = list(_joined(self._read(found)))
        reason = END_REASONS.get(found.finish_reason)
        has_calls = self._readers[found.index].has_calls
        return Piece(
            index=found.index,
            deltas=deltas,
            token_ids=found.token_ids,
            logprobs=found.logprobs or (),
            reason="tool_calls" if reason == "stop" and has_calls else reason,
            stop=found.stop_reason,
        )

    def with_reasoning(self, counts: TokenCounts) -> TokenCounts:
        """The numbers of a complete answer, with that of its reasoning tokens if there is a
        reasoning parser."""
        if self._parsers.reasoning is None:
            return counts
        return replace(counts, reasoning=sum(map(self._num_reasoning_tokens, self._readers)))

    def _num_reasoning_tokens(self, index: int) -> int:
        """Number of a choice's tokens whose text begins within its reasoning. The reasoning's marks
        do not count."""
        spans, token_ids = self._readers[index].reasoning_spans, self._token_ids[index]
        if not spans:
            return 0
        detokenizer = self._tokenizer.detokenizer(skip_special_tokens=self._skips_special_tokens)
        lengths = (len(detokenizer.add((token_id,))) for token_id in token_ids)
        begins = list(accumulate(lengths, initial=0))[:-1]
        return sum(bisect_left(begins, end) - bisect_left(begins, begin) for begin, end in spans)

    async def read_ahead(self, outputs: Outputs) -> None:
        """Parse complete choices piece by piece, so that the event loop also works for others.

        Parsers run in its thread, because only there they are interrupted if they hang.
        """
        for found in (found for output in outputs for found in output.outputs):
            reader, deltas = self._reader_of(found.index), list[Delta]()
            for start in range(0, len(found.text), _PIECE):
                deltas += reader.feed(found.text[start : start + _PIECE])
                await asyncio.sleep(0)
            self._ahead[found.index] = deltas + reader.finish()

    def _read(self, found: CompletionOutput) -> list[Delta]:
        reader = self._reader_of(found.index)
        self._token_ids.setdefault(found.index, []).extend(found.token_ids)
        if found.index in self._ahead:
            return self._ahead.pop(found.index)
        deltas = reader.feed(found.text)
        return deltas + reader.finish() if found.finished else deltas

    def _reader_of(self, index: int) -> AnswerReader:
        if index not in self._readers:
            self._readers[index] = self._new_reader()
        return self._readers[index]

    def _new_reader(self) -> AnswerReader:
        return AnswerReader(
            reasoning=self._parsers.reasoning,
            tool_calls=self._parser,
            tools=self._tools.callable,
            prompt_end=self._prompt_end,
            is_parallel=self._tools.is_parallel,
            guards=self._parsers.guards,
            transforms=None if self._transformed is None else self._transformed.answer(),
        )


def _triggers(parser: ToolCallParser) -> bool:
    return parser.call_syntax is not None and bool(parser.call_syntax.trigger)


def _joined(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """The deltas, of which those of one text or call that follow each other are one."""
    found = (delta for delta in deltas if isinstance(delta, ToolCallDelta) or delta.text)
    for _, run in groupby(found, lambda delta: (type(delta), getattr(delta, "index", None))):
        first, *rest = run
        if isinstance(first, ToolCallDelta):
            more = [delta.arguments for delta in rest if isinstance(delta, ToolCallDelta)]
            yield replace(first, arguments="".join((first.arguments, *more)))
        else:
            more = [delta.text for delta in rest if not isinstance(delta, ToolCallDelta)]
            yield type(first)("".join((first.text, *more)))
