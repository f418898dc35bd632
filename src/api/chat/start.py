"""Starts a chat: all APIs for conversations submit it here, and read its answer from here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from anyio import to_thread
from starlette.requests import Request

from ...core.contract.client import EngineClient
from ...core.errors import InvalidRequestError
from ...core.outputs import RequestMetrics
from ...core.requests.sampling_params import OutputKind, SamplingParams
from ..http.errors import own_names
from ..http.ignored_fields import name_ignored
from ..serving.answers import LONG_ANSWER, Outputs, TokenCounts, TokenTally
from ..serving.context import AnswerHead, AppContext, check_fan_out, context_of, make_head
from ..serving.reading.fields import Sender
from ..serving.reading.request_reading import compute
from ..serving.request_options import request_options
from ..serving.streams import RequestSet, check_ends, submit_all
from .conversation import Conversation, encode_conversation
from .grammar_fields import GrammarFields, naming_field
from .reading import ChatReading, Finished, Piece
from .sampling import params_with_all_room, with_default_length
from .tools import ToolUse, new_call_id, parser_of
from .transforming import transform_messages

Body = TypeVar("Body")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A chat, whatever API it came by."""

    model: str | None
    conversation: Conversation
    tools: ToolUse
    sampled: Mapping[str, Any]
    """Sampling parameters by name. None counts as not given."""
    grammar: GrammarFields
    sender: Sender
    is_streamed: bool
    thinking_budget: int | None = None
    """Tokens of reasoning after which its end is forced."""


async def start_chat(
    request: Request,
    read: Callable[[Body], ChatRequest],
    body: Body,
    prefix: str,
    names: Mapping[str, str],
) -> Chat:
    """Submit the chat that `read` finds in a body.

    `prefix` is the beginning of the answer's id; errors use the API's field `names`. Raises
    APIError or InvalidRequestError with the field's name, and what EngineClient.submit raises.
    """
    with own_names(names):
        return await _start(request, await compute(request, read, body), prefix)


async def _start(request: Request, chat: ChatRequest, prefix: str) -> Chat:
    context = context_of(request)
    engine, tools = context.engine, chat.tools
    context.check_model(chat.model, is_needed=True)
    check_fan_out(1, chat.sampled.get("n") or 1)
    options = request_options(request, chat.sender, prefix, context.settings.metadata_headers)
    params = await compute(request, _params, chat, engine)
    parser_of(tools, context.parsers)  # raises before the conversation costs time
    conversation, answers = chat.conversation, None
    if context.parsers.transforms:
        conversation, answers = transform_messages(conversation, context.parsers, options)
    prompt = await encode_conversation(
        conversation,
        context,
        tools.shown,
        sender=options.api_key_id,
        cache_salt=options.cache_salt,
    )
    tokens = prompt.token_ids
    reading = ChatReading(tools, chat.thinking_budget, context, tokens, answers)
    params = with_default_length(params, engine, len(tokens))
    adjusted = await compute(request, reading.adjust, params)

    def submit(params: SamplingParams) -> Awaitable[RequestSet]:
        given = prompt if prompt.items else tokens
        return submit_all(request, [given], params, options, is_streamed=chat.is_streamed)

    field = chat.grammar.param or ("tools" if tools.tools else None)
    with naming_field(field):
        try:
            requests = await submit(adjusted)
        except InvalidRequestError as error:
            if error.param != "grammar" or not reading.is_guided:
                raise
            requests = await submit(adjusted.with_changes(grammar=None))
    name_ignored(request.scope, [f"{field}.{keyword}" for keyword in requests.ignored_keywords])
    head = make_head(requests.request_id, engine.model_name)
    return Chat(context=context, tools=tools, requests=requests, reading=reading, head=head)


def _params(chat: ChatRequest, engine: EngineClient) -> SamplingParams:
    given = {**chat.sampled, "grammar": chat.grammar.read(), "output_kind": OutputKind.DELTA}
    return params_with_all_room(engine, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A chat that the engine answers."""

    context: AppContext
    tools: ToolUse
    requests: RequestSet
    reading: ChatReading
    head: AnswerHead

    def new_call_id(self) -> str:
        return new_call_id(self.context.parsers)

    def whole(self, outputs: Outputs, counts: TokenCounts) -> tuple[Piece, Finished]:
        """A complete answer with one choice."""
        (output,) = outputs
        (found,) = output.outputs
        piece = self.reading.piece(found)
        return piece, self._finished(piece, counts, output.metrics)

    async def pieces(self) -> AsyncIterator[Piece | Finished]:
        """A streamed answer with one choice. Raises APIError where it was ended early."""
        tally = TokenTally(self.requests)
        async for prompt, output in self.requests.merged():
            (found,) = output.outputs
            tally.count(prompt, output, found)
            piece = self.reading.piece(found)
            yield piece
            check_ends((output,), self.context.engine)
        counts = tally.counts()
        end = partial(self._finished, piece, counts, output.metrics)
        yield await to_thread.run_sync(end) if counts.completion > LONG_ANSWER else end()

    def _finished(
        self, piece: Piece, counts: TokenCounts, metrics: RequestMetrics | None
    ) -> Finished:
        assert piece.reason is not None, "an answer that was ended early is an error"
        counts = self.reading.with_reasoning(counts)
        return Finished(reason=piece.reason, stop=piece.stop, counts=counts, metrics=metrics)
