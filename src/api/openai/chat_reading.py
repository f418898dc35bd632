"""Reasoning and tool calls of chat completions: from generated text to messages and deltas."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, groupby

import msgspec
from msgspec import UNSET, UnsetType

from ...core.contract.parsing.answer_parsers import ToolCallParser
from ...core.contract.parsing.answers import Delta, ToolCallDelta
from ...core.errors import InvalidRequestError
from ...core.grammar import Grammar
from ...core.host.answer_reader import AnswerReader, ParsedAnswer, collect
from ...core.host.transforms import TransformedAnswers
from ...core.outputs import CompletionOutput
from ...core.sampling_params import SamplingParams
from ..answers.enforcing import grammar_of
from ..answers.tools import ToolUse, new_call_id, parser_of
from ..http.errors import APIError
from .chunks import end_reason
from .context import AppContext
from .reading.bodies import ChatBody
from .responses import (
    ChatDelta,
    ChatMessage,
    ChatToolCall,
    CompletionTokensDetails,
    EndReason,
    FunctionCall,
    Usage,
)
from .thinking import with_thinking_budget

ROLE = "assistant"
_PROMPT_END = 16
"""Tokens of the prompt's end that a reasoning parser sees: enough for a line that the chat template
adds."""
_PIECE = 4096
"""Characters that are parsed in one turn of the event loop, in 0.5 to 7 ms."""


class ChatReading:
    """Parses the choices of one chat completion.

    Raises APIError (400) if calls could not be found in the answer.
    """

    def __init__(
        self,
        body: ChatBody,
        tools: ToolUse,
        context: AppContext,
        prompt_token_ids: Sequence[int],
        transformed: TransformedAnswers,
    ) -> None:
        self._parser = parser_of(tools, context.parsers)
        self._transformed = transformed
        self._tools = tools
        self._parsers = context.parsers
        self._tokenizer = context.engine.tokenizer
        self._budget = body.thinking_token_budget
        self._hides_reasoning = body.include_reasoning is False
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
        """What `read_ahead` has found, by choice."""

    def adjust(self, params: SamplingParams) -> SamplingParams:
        """Enforce calls if the request demands them, and keep special tokens in the text if a
        parser needs them.

        Raises APIError (400) if the answer already has another grammar.
        """
        if self._tools.mode == "required":
            if params.grammar is not None:
                raise APIError(
                    400, "a tool_choice that enforces a call cannot be combined with "
                    "response_format or structured_outputs; remove one of them",
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

    def message(self, found: CompletionOutput) -> ChatMessage:
        """The message of a complete choice."""
        parsed = collect(self._read(found))
        return ChatMessage(
            role=ROLE,
            content=_content(parsed),
            tool_calls=[self._call(call.name, call.arguments) for call in parsed.calls] or UNSET,
            reasoning=self._shown(parsed.reasoning),
            reasoning_content=self._shown(parsed.reasoning),
        )

    def deltas(self, found: CompletionOutput) -> list[ChatDelta]:
        """The new part of a choice, in the order of its text. Each delta has only one of content,
        reasoning and pieces of calls."""
        runs = (list(run) for _, run in groupby(self._read(found), type))
        deltas = (self._delta(run) for run in runs)
        return [delta for delta in deltas if delta.content or delta.tool_calls or delta.reasoning]

    def _delta(self, run: Sequence[Delta]) -> ChatDelta:
        parsed = collect(run)
        reasoning = self._shown(parsed.reasoning)
        return ChatDelta(
            content=UNSET if parsed.content is None else parsed.content,
            tool_calls=self._pieces(run) or UNSET,
            reasoning=reasoning,
            reasoning_content=reasoning,
        )

    def with_reasoning_tokens(self, usage: Usage) -> Usage:
        """The usage of a complete answer, with its number of reasoning tokens if there is a
        reasoning parser."""
        if self._parsers.reasoning is None:
            return usage
        details = usage.completion_tokens_details or CompletionTokensDetails()
        details.reasoning_tokens = sum(map(self._num_reasoning_tokens, self._readers))
        return msgspec.structs.replace(usage, completion_tokens_details=details)

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

    def end_reason(self, found: CompletionOutput) -> EndReason | None:
        """OpenAI's `finish_reason`. As there, a named function ends with "stop"."""
        reason = end_reason(found)
        has_calls = self._readers[found.index].has_calls
        return "tool_calls" if reason == "stop" and has_calls and not self._tools.named else reason

    async def read_ahead(self, found: CompletionOutput) -> None:
        """Parse a complete choice piece by piece, so that the event loop also works for others.

        Parsers run in its thread, because only there they are interrupted if they hang.
        """
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
            transforms=self._transformed.answer(),
        )

    def _pieces(self, deltas: Sequence[Delta]) -> list[ChatToolCall]:
        """One piece for each call that goes on. Its first piece has id, type and name."""
        pieces: dict[int, ChatToolCall] = {}
        for delta in deltas:
            if not isinstance(delta, ToolCallDelta):
                continue
            piece = pieces.get(delta.index)
            if piece is None:
                piece = pieces[delta.index] = self._piece(delta)
            piece.function.arguments += delta.arguments
        return list(pieces.values())

    def _piece(self, delta: ToolCallDelta) -> ChatToolCall:
        if delta.name is None:
            return ChatToolCall(index=delta.index, function=FunctionCall(arguments=""))
        piece = self._call(delta.name, "")
        piece.index = delta.index
        return piece

    def _call(self, name: str, arguments: str) -> ChatToolCall:
        return ChatToolCall(
            id=new_call_id(self._parsers),
            type="function",
            function=FunctionCall(name=name, arguments=arguments),
        )

    def _shown(self, reasoning: str | None) -> str | UnsetType:
        return UNSET if reasoning is None or self._hides_reasoning else reasoning


def _triggers(parser: ToolCallParser) -> bool:
    return parser.call_syntax is not None and bool(parser.call_syntax.trigger)


def _content(parsed: ParsedAnswer) -> str | None:
    """OpenAI's content: null if there are tool calls but no text, otherwise a text."""
    return parsed.content if parsed.content is not None or parsed.calls else ""
