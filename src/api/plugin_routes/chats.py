"""Reads the chat of a plugin's route, which has the shape of OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from ...core.contract.providers.http_routes import RouteChat
from ...core.requests.given_images import take_images
from ...core.wording.value_errors import explain_value
from ..chat.conversation import Conversation
from ..chat.grammar_fields import GrammarFields
from ..chat.messages import ChatMessage, tool_call
from ..chat.start import ChatRequest
from ..chat.tools import ToolUse, definition, new_call_id, tool_use
from ..http.errors import APIError
from ..parsing.chosen_parsers import AnswerParsers
from ..serving.reading.fields import FunctionNameText, Sender

T = TypeVar("T")
_GRAMMAR = "grammar"
"""The grammar in errors, unless the route has a name for it."""


class _Function(msgspec.Struct, kw_only=True):
    """A function that the model may call, or a call of it."""

    name: FunctionNameText
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    arguments: dict[str, Any] | str = ""


class _Tool(msgspec.Struct, kw_only=True):
    function: _Function
    id: str | None = None


def chat_request(parsers: AnswerParsers, chat: RouteChat) -> ChatRequest:
    """The chat in the form of the server's own routes. Raises APIError (400)."""
    grammar = chat.grammar
    name = chat.names.get(_GRAMMAR, _GRAMMAR)
    messages, images = take_images(chat.messages)
    return ChatRequest(
        model=chat.model,
        conversation=Conversation(
            messages=_with_call_ids(_read(messages, ChatMessage, "messages"), parsers),
            images=images,
            continue_final_message=chat.continue_final_message,
            template_kwargs=chat.template_kwargs,
        ),
        tools=_tools(_read(chat.tools, _Tool, "tools")),
        sampled={"max_tokens": None, **chat.sampling},
        grammar=GrammarFields(found=() if grammar is None else ((name, lambda: grammar),)),
        sender=Sender(),
        is_streamed=chat.is_streamed,
    )


def _read(values: Sequence[object], kind: type[T], param: str) -> list[T]:
    try:
        return msgspec.convert(values, list[kind], strict=False)  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        text = explain_value(error, list[kind])[1]  # type: ignore[valid-type]
        raise APIError(400, f"{param}{text}", param=param) from error


def _tools(tools: Sequence[_Tool]) -> ToolUse:
    given = [tool.function for tool in tools]
    return tool_use(
        [definition(f.name, f.description, f.parameters, f.strict) for f in given], None
    )


def _with_call_ids(messages: list[ChatMessage], parsers: AnswerParsers) -> list[ChatMessage]:
    """The messages with an id for each call and its result. Results without an id are those of the
    calls before them, in order."""
    open_ids: list[str] = []
    for message in messages:
        if message.tool_calls:
            calls = _read(message.tool_calls, _Tool, "messages[].tool_calls")
            open_ids = [call.id or new_call_id(parsers) for call in calls]
            message.tool_calls = [
                tool_call(call_id, call.function.name, _text(call.function.arguments))
                for call_id, call in zip(open_ids, calls, strict=True)
            ]
        elif message.role == "tool" and message.tool_call_id is None:
            message.tool_call_id = open_ids.pop(0) if open_ids else new_call_id(parsers)
    return messages


def _text(arguments: dict[str, Any] | str) -> str:
    if isinstance(arguments, str):
        return arguments
    return msgspec.json.encode(arguments).decode()
