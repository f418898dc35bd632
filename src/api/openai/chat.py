"""The route POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ...core.contract.parsing.answers import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallDelta,
    collect,
)
from ...core.outputs import CompletionOutput, RequestOutput
from ..chat.logprobs import TokenNames, content_logprobs
from ..chat.reading import EndReason, Piece
from ..chat.start import Chat, start_chat
from ..serving.answers import Outputs, TokenCounts, whole_answer
from ..serving.reading.request_reading import read_body
from .chunks import event_stream, make_usage
from .logprobs import prompt_logprobs
from .reading.bodies import ChatBody
from .reading.requests import read_chat
from .request_metrics import AnswerMetrics, answer_metrics
from .responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    ChatToolCall,
    FunctionCall,
    PromptLogprobs,
)

NAMES = {"prompt": "messages", "logprobs": "top_logprobs"}
ROLE = "assistant"


async def create_chat_completion(request: Request) -> Response:
    """The answer to a conversation, as one document or as server-sent events."""
    body = await read_body(request, ChatBody)
    chat = await start_chat(request, read_chat, body, "chatcmpl", NAMES)
    answer = _Answer(body, chat)
    if body.stream:
        return event_stream(request, chat.requests, answer, body)
    return await whole_answer(request, chat.requests, answer.whole, chat.reading.read_ahead)


class _Answer:
    """Builds choices and chunks from the engine's outputs; see chunks.Answer."""

    def __init__(self, body: ChatBody, chat: Chat) -> None:
        self._body = body
        self._chat = chat
        self._head = chat.head
        self._tokenizer = chat.context.engine.tokenizer
        self._names = TokenNames(self._tokenizer, bool(body.return_tokens_as_token_ids))
        self._shows_reasoning = body.include_reasoning is not False
        self._is_named = chat.tools.named is not None
        self._prompt_token_ids = (
            list(chat.requests.streams[0].prompt_token_ids) if body.return_token_ids else UNSET
        )

    def whole(self, outputs: Outputs, counts: TokenCounts) -> ChatResponse:
        (output,) = outputs  # a chat has one prompt
        return ChatResponse(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=[self._choice(self._chat.reading.piece(found)) for found in output.outputs],
            usage=make_usage(self._chat.reading.with_reasoning(counts)),
            metrics=self._metrics(counts),
            system_fingerprint=self._chat.context.fingerprint,
            prompt_token_ids=self._prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs(output),
        )

    def _prompt_logprobs(self, output: RequestOutput) -> PromptLogprobs | UnsetType:
        if output.prompt_logprobs is None:
            return UNSET
        num_top = self._body.prompt_logprobs or 0
        return prompt_logprobs(output.prompt_logprobs, self._tokenizer, num_top)

    def opening(self) -> list[ChatChunk]:
        """The role of each choice; the first chunk has the prompt's token ids, if asked for."""
        delta = ChatDelta(role=ROLE, content="", refusal=None)
        chunks = [self._chunk([_choice(index, delta)]) for index in range(self._body.n or 1)]
        chunks[0].prompt_token_ids = self._prompt_token_ids
        return chunks

    def chunks(
        self, prompt: int, output: RequestOutput, found: CompletionOutput
    ) -> list[ChatChunk]:
        """The chunks for new text: one for each run of content, reasoning or calls, in the order
        of the text."""
        piece = self._chat.reading.piece(found)
        deltas = self._deltas(piece.deltas)
        choices = [_choice(piece.index, delta) for delta in deltas or [ChatDelta()]]
        first, last = choices[0], choices[-1]
        first.logprobs = self._logprobs(piece)
        if self._body.return_token_ids:
            first.token_ids = list(piece.token_ids)
        last.finish_reason = self._reason(piece)
        if piece.stop is not None:
            last.stop_reason = piece.stop
        has_news = deltas or last.finish_reason or first.logprobs or first.token_ids
        return [self._chunk([choice]) for choice in choices] if has_news else []

    def closing(self, counts: TokenCounts) -> ChatChunk:
        chunk = self._chunk([])
        chunk.usage = make_usage(self._chat.reading.with_reasoning(counts))
        chunk.metrics = self._metrics(counts)
        chunk.system_fingerprint = self._chat.context.fingerprint
        return chunk

    def _metrics(self, counts: TokenCounts) -> AnswerMetrics | UnsetType:
        return answer_metrics(self._chat.context, counts, self._body.n or 1)

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        head = self._head
        return ChatChunk(id=head.id, created=head.created, model=head.model, choices=choices)

    def _choice(self, piece: Piece) -> ChatChoice:
        parsed = collect(piece.deltas)
        calls = [self._call(call.name, call.arguments) for call in parsed.calls]
        reasoning = parsed.reasoning if self._shows_reasoning else None
        thoughts = UNSET if reasoning is None else reasoning
        message = ChatMessage(
            role=ROLE,
            content="" if parsed.content is None and not calls else parsed.content,
            tool_calls=calls or UNSET,
            reasoning=thoughts,
            reasoning_content=thoughts,
        )
        return ChatChoice(
            index=piece.index,
            message=message,
            logprobs=self._logprobs(piece),
            finish_reason=self._reason(piece),
            stop_reason=UNSET if piece.stop is None else piece.stop,
            token_ids=list(piece.token_ids) if self._body.return_token_ids else UNSET,
        )

    def _deltas(self, deltas: Sequence[Delta]) -> list[ChatDelta]:
        """The deltas; pieces of calls that follow each other are one."""
        found: list[ChatDelta] = []
        for kind, run in groupby(deltas, type):
            if kind is ToolCallDelta:
                calls = [self._call_piece(d) for d in run if isinstance(d, ToolCallDelta)]
                found.append(ChatDelta(tool_calls=calls))
                continue
            for delta in run:
                if isinstance(delta, ContentDelta):
                    found.append(ChatDelta(content=delta.text))
                elif isinstance(delta, ReasoningDelta) and self._shows_reasoning:
                    text = delta.text
                    found.append(ChatDelta(reasoning=text, reasoning_content=text))
        return found

    def _call_piece(self, delta: ToolCallDelta) -> ChatToolCall:
        """A piece of a call. Its first piece has id, type and name."""
        if delta.name is None:
            function = FunctionCall(arguments=delta.arguments)
            return ChatToolCall(index=delta.index, function=function)
        piece = self._call(delta.name, delta.arguments)
        piece.index = delta.index
        return piece

    def _call(self, name: str, arguments: str) -> ChatToolCall:
        return ChatToolCall(
            id=self._chat.new_call_id(),
            type="function",
            function=FunctionCall(name=name, arguments=arguments),
        )

    def _reason(self, piece: Piece) -> EndReason | None:
        """In OpenAI's API, a function that had to be called ends with "stop"."""
        return "stop" if self._is_named and piece.reason == "tool_calls" else piece.reason

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        if not piece.logprobs:
            return None
        return ChatLogprobs(content=content_logprobs(piece.logprobs, self._names))


def _choice(index: int, delta: ChatDelta) -> ChatChunkChoice:
    return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)
