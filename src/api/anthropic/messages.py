"""The routes of Anthropic's Messages API.

The header `anthropic-version` is not read: clients send new versions with each release, and what
is implemented here has stayed the same since 2023-06-01.
"""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from ..http.anthropic_errors import anthropic_error_body
from ..http.errors import APIError
from ..openai.chat import start_chat
from ..openai.chunks import stream_chunks, whole_answer
from ..openai.conversation import encode_conversation
from ..openai.reading.field_names import MESSAGES
from ..openai.reading.tools import read_tool_use
from ..openai.thinking import reasoning_marks
from ..serving.context import context_of
from ..serving.reading.request_reading import compute, read_body
from ..serving.sse import EventStream, data_line, json_response, named_events
from .answers import TokenCount
from .bodies import CountTokensBody, MessagesBody
from .conversation import chat_body
from .events import message_events, whole_message


async def create_message(request: Request) -> Response:
    """The next message of a conversation, as one document or as server-sent events."""
    body = await read_body(request, MessagesBody)
    chat = await compute(request, chat_body, body)
    if reasoning_marks(context_of(request).parsers) is None:
        chat.thinking_token_budget = None  # clients send one whatever the model
    requests, answer = await start_chat(request, chat, "msg", MESSAGES)
    if not body.stream:
        whole = partial(whole_message, answer)
        return await whole_answer(request, requests, answer, whole)
    chunks = stream_chunks(answer, requests, chat.stream_options, context_of(request).engine)
    events = message_events(chunks, answer.head, requests.num_prompt_tokens)
    return EventStream(request, requests, events, EVENTS)


async def count_tokens(request: Request) -> Response:
    """The number of tokens of a conversation, without an answer."""
    body = await read_body(request, CountTokensBody)
    context = context_of(request)
    context.check_model(body.model)
    chat = await compute(request, chat_body, body)
    with MESSAGES.in_errors():
        tools = await compute(request, read_tool_use, chat)
        token_ids = await encode_conversation(
            chat, chat.messages, context.engine, context.parsers, tools.shown
        )
    return json_response(TokenCount(input_tokens=len(token_ids)))


def _failed(error: APIError) -> bytes:
    return b"event: error\n" + data_line(anthropic_error_body(error.status, error.message))


EVENTS = named_events(_failed, keep_alive=b'event: ping\ndata: {"type":"ping"}\n\n')
