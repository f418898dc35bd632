"""The route POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ...core.contract.client import EngineClient
from ...core.errors import InvalidRequestError
from ...core.outputs import CompletionOutput, RequestOutput
from ...core.sampling_params import SamplingParams
from ..answers.tools import parser_of
from ..http.ignored_fields import name_ignored
from .chat_reading import ROLE, ChatReading
from .context import AnswerHead, check_fan_out, context_of, make_head
from .conversation import encode_conversation
from .logprobs import TokenNames, chat_logprobs, prompt_logprobs
from .reading.bodies import ChatBody
from .reading.field_names import CHAT, FieldNames
from .reading.grammar_fields import ignored_paths, naming_field
from .reading.request_reading import check_combinations, compute, read_body
from .reading.tools import read_tool_use
from .request_options import request_options
from .responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatResponse,
    PromptLogprobs,
    Usage,
)
from .sampling import chat_params, with_default_length
from .sse import respond
from .streams import RequestSet, submit_all
from .transforming import transform_messages


async def create_chat_completion(request: Request) -> Response:
    """The answer to a conversation, as one document or as server-sent events."""
    body = await read_body(request, ChatBody)
    requests, answer = await start_chat(request, body, "chatcmpl", CHAT)
    return await respond(request, requests, answer, body)


async def start_chat(
    request: Request, body: ChatBody, prefix: str, names: FieldNames
) -> tuple[RequestSet, ChatAnswer]:
    """Submit a conversation. All APIs for conversations do it here.

    `prefix` is the beginning of the answer's id; errors and headers use the API's field `names`.
    Raises APIError or InvalidRequestError with the field's name, and what EngineClient.submit
    raises.
    """
    with names.in_errors():
        requests, reading = await _submit(request, body, prefix)
    ignored = ignored_paths(body, requests.ignored_keywords)
    name_ignored(request.scope, [names.own(path) for path in ignored])
    engine = context_of(request).engine
    head = make_head(requests.request_id, engine.model_name)
    return requests, ChatAnswer(body, head, engine, requests, reading)


async def _submit(request: Request, body: ChatBody, prefix: str) -> tuple[RequestSet, ChatReading]:
    context = context_of(request)
    check_combinations(body)
    context.check_model(body.model, is_needed=True)
    check_fan_out(1, body.n or 1)
    engine = context.engine
    options = request_options(request, body, prefix, context.settings.metadata_headers)
    params = await compute(request, chat_params, body, engine)
    tools = await compute(request, read_tool_use, body)
    parser_of(tools, context.parsers)  # raises before the conversation costs time
    transformed = transform_messages(body.messages, context.parsers, options)
    tokens = await encode_conversation(body, body.messages, engine, context.parsers, tools.shown)
    reading = ChatReading(body, tools, context, tokens, transformed)
    params = with_default_length(params, engine, len(tokens))
    adjusted = await compute(request, reading.adjust, params)

    def submit(params: SamplingParams) -> Awaitable[RequestSet]:
        return submit_all(request, [tokens], params, options, is_streamed=bool(body.stream))

    with naming_field(body):
        try:
            return await submit(adjusted), reading
        except InvalidRequestError as error:
            if error.param != "grammar" or not reading.is_guided:
                raise
        return await submit(adjusted.with_changes(grammar=None)), reading


class ChatAnswer:
    """Builds choices and chunks from the engine's outputs; see chunks.Answer."""

    def __init__(
        self,
        body: ChatBody,
        head: AnswerHead,
        engine: EngineClient,
        requests: RequestSet,
        reading: ChatReading,
    ) -> None:
        self._reading = reading
        self._body = body
        self.head = head
        self._tokenizer = engine.tokenizer
        self._names = TokenNames(engine.tokenizer, bool(body.return_tokens_as_token_ids))
        self._prompt_token_ids = (
            list(requests.streams[0].prompt_token_ids) if body.return_token_ids else UNSET
        )

    def whole(self, outputs: Sequence[RequestOutput], usage: Usage) -> ChatResponse:
        (output,) = outputs  # a chat has one prompt
        head = self.head
        choices = [self._choice(found) for found in output.outputs]
        return ChatResponse(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            usage=self._reading.with_reasoning_tokens(usage),
            prompt_token_ids=self._prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs(output),
        )

    async def read_ahead(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            for found in output.outputs:
                await self._reading.read_ahead(found)

    def _prompt_logprobs(self, output: RequestOutput) -> PromptLogprobs | UnsetType:
        if output.prompt_logprobs is None:
            return UNSET
        num_top = self._body.prompt_logprobs or 0
        return prompt_logprobs(output.prompt_logprobs, self._tokenizer, num_top)

    def opening(self) -> list[ChatChunk]:
        """The role of each choice; the first chunk has the prompt's token ids, if asked for."""
        delta = ChatDelta(role=ROLE, content="", refusal=None)
        chunks = [self._chunk([_piece(index, delta)]) for index in range(self._body.n or 1)]
        chunks[0].prompt_token_ids = self._prompt_token_ids
        return chunks

    def chunks(
        self, prompt: int, output: RequestOutput, found: CompletionOutput
    ) -> list[ChatChunk]:
        """The chunks for new text: one for each run of content, reasoning or calls, in the order
        of the text."""
        deltas = self._reading.deltas(found)
        choices = [_piece(found.index, delta) for delta in deltas or [ChatDelta()]]
        first, last = choices[0], choices[-1]
        first.logprobs = self._logprobs(found)
        if self._body.return_token_ids:
            first.token_ids = list(found.token_ids)
        last.finish_reason = self._reading.end_reason(found)
        if found.stop_reason is not None:
            last.stop_reason = found.stop_reason
        has_news = deltas or last.finish_reason or first.logprobs or first.token_ids
        return [self._chunk([choice]) for choice in choices] if has_news else []

    def closing(self, usage: Usage) -> ChatChunk:
        chunk = self._chunk([])
        chunk.usage = self._reading.with_reasoning_tokens(usage)
        return chunk

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        head = self.head
        return ChatChunk(id=head.id, created=head.created, model=head.model, choices=choices)

    def _choice(self, found: CompletionOutput) -> ChatChoice:
        return ChatChoice(
            index=found.index,
            message=self._reading.message(found),
            logprobs=self._logprobs(found),
            finish_reason=self._reading.end_reason(found),
            stop_reason=UNSET if found.stop_reason is None else found.stop_reason,
            token_ids=list(found.token_ids) if self._body.return_token_ids else UNSET,
        )

    def _logprobs(self, found: CompletionOutput) -> ChatLogprobs | None:
        if not found.logprobs:
            return None
        return chat_logprobs(found.logprobs, self._names)


def _piece(index: int, delta: ChatDelta) -> ChatChunkChoice:
    return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)
