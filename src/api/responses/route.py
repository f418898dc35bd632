"""The route POST /v1/responses."""

from __future__ import annotations

from functools import partial

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from ...core.contract.client import EngineClient
from ..openai.chat import start_chat
from ..openai.chunks import CHUNKS, stream_chunks, whole_answer
from ..openai.reading.field_names import RESPONSES
from ..serving.context import AnswerHead, context_of
from ..serving.reading.request_reading import compute, read_body
from ..serving.sse import KEEP_ALIVE, EventStream, named_events
from .answers import ResponseObject, TextSettings
from .bodies import ReasoningOptions, ResponsesBody, TextFormat
from .conversation import chat_body
from .writer import response_events, whole_response

EVENTS = named_events(CHUNKS.error, KEEP_ALIVE)


async def create_response(request: Request) -> Response:
    """The answer to an input, as one document or as server-sent events. Nothing is stored."""
    body = await read_body(request, ResponsesBody)
    chat = await compute(request, chat_body, body)
    requests, answer = await start_chat(request, chat, "resp", RESPONSES)
    engine = context_of(request).engine
    opening = _opening(body, answer.head, engine)
    if not body.stream:
        whole = partial(whole_response, opening, answer)
        return await whole_answer(request, requests, answer, whole)
    chunks = stream_chunks(answer, requests, chat.stream_options, engine)
    return EventStream(request, requests, response_events(opening, chunks), EVENTS)


def _opening(body: ResponsesBody, head: AnswerHead, engine: EngineClient) -> ResponseObject:
    """The response before its first token."""
    params = engine.default_sampling_params(temperature=body.temperature, top_p=body.top_p)
    return ResponseObject(
        id=head.id,
        created_at=head.created,
        status="in_progress",
        frequency_penalty=body.frequency_penalty or 0.0,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=head.model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        presence_penalty=body.presence_penalty or 0.0,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=body.reasoning or ReasoningOptions(),
        safety_identifier=body.safety_identifier,
        temperature=params.temperature,
        text=TextSettings(format=(body.text and body.text.format) or TextFormat(type="text")),
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p,
        user=body.user or UNSET,
    )
