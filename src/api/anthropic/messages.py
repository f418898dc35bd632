"""The routes of Anthropic's Messages API.

The header `anthropic-version` is not read: clients send new versions with each release, and what
is implemented here has stayed the same since 2023-06-01.
"""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from ..chat.conversation import encode_conversation
from ..chat.sampling import reasoning_marks
from ..chat.start import start_chat
from ..http.anthropic_errors import anthropic_error_body
from ..http.errors import APIError, own_names
from ..http.keys.auth import key_holder
from ..http.request_id import request_id_of
from ..serving.answers import whole_answer
from ..serving.context import context_of
from ..serving.reading.request_reading import compute, read_body
from ..serving.sse import EventStream, data_line, json_response, named_events
from .answers import TokenCount
from .bodies import CountTokensBody, MessagesBody
from .conversation import read_chat, read_conversation, read_tools
from .events import message_events, whole_message

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
NAMES = {
    "prompt": "messages",
    "chat_template_kwargs.enable_thinking": "thinking",
    "chat_template_kwargs.reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "function.parameters": "input_schema",
    "messages[].tool_calls[].function.arguments": "messages[].content[].input",
    "stop": "stop_sequences",
    "user": "metadata.user_id",
}


async def create_message(request: Request) -> Response:
    """The next message of a conversation, as one document or as server-sent events."""
    body = await read_body(request, MessagesBody)
    if reasoning_marks(context_of(request).parsers) is None and body.thinking:
        body.thinking.budget_tokens = None  # clients send one whatever the model
    chat = await start_chat(request, read_chat, body, "msg", NAMES)
    if body.stream:
        framing = named_events(partial(failed_message, request_id_of(request.scope)), PING)
        return EventStream(request, chat.requests, message_events(chat), framing)
    whole = partial(whole_message, chat)
    return await whole_answer(request, chat.requests, whole, chat.reading.read_ahead)


async def count_tokens(request: Request) -> Response:
    """The number of tokens of a conversation, without an answer."""
    body = await read_body(request, CountTokensBody)
    context = context_of(request)
    context.check_model(body.model)
    with own_names(NAMES):
        conversation = await compute(request, read_conversation, body)
        tools = await compute(request, read_tools, body)
        holder = key_holder(request.scope)
        sender = None if holder is None else holder.id
        prompt = await encode_conversation(conversation, context, tools.shown, sender=sender)
    return json_response(TokenCount(input_tokens=len(prompt.token_ids)))


def failed_message(request_id: str, error: APIError) -> bytes:
    """The last event of a stream that failed."""
    body = anthropic_error_body(error.status, error.message, request_id)
    return b"event: error\n" + data_line(body)
