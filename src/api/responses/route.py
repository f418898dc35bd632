"""The route POST /v1/responses."""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from ...core.contract.client import EngineClient
from ..chat.start import start_chat
from ..http.errors import error_body
from ..serving.answers import whole_answer
from ..serving.context import AnswerHead
from ..serving.reading.request_reading import read_body
from ..serving.sse import KEEP_ALIVE, EventStream, data_line, named_events
from .answers import ResponseObject, TextSettings
from .bodies import ReasoningOptions, ResponsesBody, TextFormat
from .conversation import read_chat
from .writer import response_events, whole_response

EVENTS = named_events(lambda error: data_line(error_body(error)), KEEP_ALIVE)
NAMES = {
    "prompt": "input",
    "chat_template_kwargs.reasoning_effort": "reasoning.effort",
    "function.parameters": "parameters",
    "messages[].tool_calls[].function": "input[]",
    "messages[].tool_calls": "input[]",
    "messages": "input",
    "logprobs": "top_logprobs",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}


async def create_response(request: Request) -> Response:
    """The answer to an input, as one document or as server-sent events. Nothing is stored."""
    body = await read_body(request, ResponsesBody)
    chat = await start_chat(request, read_chat, body, "resp", NAMES)
    opening = _opening(body, chat.head, chat.context.engine)
    if body.stream:
        return EventStream(request, chat.requests, response_events(opening, chat), EVENTS)
    whole = partial(whole_response, opening, chat)
    return await whole_answer(request, chat.requests, whole, chat.reading.read_ahead)


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
        text=TextSettings(format=_format(body.text.format if body.text else None)),
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p,
        user=body.user or UNSET,
    )


def _format(given: TextFormat | None) -> TextFormat:
    """The form of the text. A schema's form always has a name, and says whether it is strict."""
    if given is None:
        return TextFormat(type="text")
    if given.type != "json_schema":
        return given
    return msgspec.structs.replace(given, name=given.name or "", strict=bool(given.strict))
