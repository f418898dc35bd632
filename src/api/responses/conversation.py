"""Translates the body of a Responses call into the body of a chat completion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from ...core.sampling_params import RESPONSES, sampled_in
from ..http.errors import APIError
from ..openai.reading.bodies import (
    ChatBody,
    ChatMessageBody,
    JSONSchemaFormat,
    ResponseFormat,
    TextPart,
    ToolChoice,
)
from ..openai.reading.chat_parts import (
    allowed_tools,
    missing,
    named_tool,
    needed,
    schema_format,
    text_only,
    text_part,
    tool,
    tool_call,
)
from ..serving.reading.fields import StreamOptions
from ..serving.reading.unsupported import unsupported
from .bodies import (
    AllowedFunctions,
    Content,
    FunctionChoice,
    InputItem,
    InputPart,
    NamedFunction,
    ResponsesBody,
    TextOptions,
)

_SAME_NAME = (
    *sampled_in(RESPONSES),
    *("model", "metadata", "parallel_tool_calls", "stream", "user", "cache_salt"),
    *("prompt_cache_key", "priority", "request_id", "request_timeout", "structured_outputs"),
)


def chat_body(body: ResponsesBody) -> ChatBody:
    """The chat completion that a Responses call means. Raises APIError with the field's name."""
    logprobs = "message.output_text.logprobs" in (body.include or ())
    if body.top_logprobs and not logprobs:
        raise APIError(
            400,
            "top_logprobs needs 'message.output_text.logprobs' in include",
            param="top_logprobs",
        )
    return ChatBody(
        **{name: getattr(body, name) for name in _SAME_NAME},
        messages=list(_messages(body)),
        max_tokens=body.max_output_tokens,
        logprobs=logprobs,
        top_logprobs=body.top_logprobs,
        stream_options=_stream_options(body),
        response_format=_response_format(body.text),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        tools=[tool(t.name, t.description, t.parameters, t.strict) for t in body.tools or ()],
        tool_choice=_tool_choice(body.tool_choice),
    )


def _response_format(text: TextOptions | None) -> ResponseFormat | None:
    given = text.format if text else None
    if given is None or given.type != "json_schema":
        return ResponseFormat(type=given.type) if given else None
    return schema_format(
        JSONSchemaFormat(
            name=given.name,
            description=given.description,
            schema=given.schema,
            strict=given.strict,
        )
    )


def _tool_choice(choice: FunctionChoice | None) -> ToolChoice | None:
    if isinstance(choice, NamedFunction):
        return named_tool(choice.name)
    if isinstance(choice, AllowedFunctions):
        return allowed_tools(choice.mode, [function.name for function in choice.tools])
    return choice


def _stream_options(body: ResponsesBody) -> StreamOptions | None:
    """Usage is part of the last event, whatever the client asks for."""
    if body.stream:
        given = body.stream_options or StreamOptions()
        return msgspec.structs.replace(given, include_usage=True, continuous_usage_stats=None)
    return body.stream_options


def _messages(body: ResponsesBody) -> Iterator[ChatMessageBody]:
    if body.instructions:
        yield ChatMessageBody(role="system", content=body.instructions)
    if isinstance(body.input, str):
        yield ChatMessageBody(role="user", content=body.input)
        return
    found = (_message(item, f"input[{index}]") for index, item in enumerate(body.input))
    for is_assistant, messages in groupby(found, lambda message: message.role == "assistant"):
        if is_assistant:
            yield _turn(list(messages))
        else:
            yield from messages


def _message(item: InputItem, place: str) -> ChatMessageBody:
    """An item as a message of its own."""
    match item.type:
        case "reasoning":
            thoughts = _texts(item.content or "", place)
            return ChatMessageBody(role="assistant", reasoning_content="".join(thoughts))
        case "function_call":
            return ChatMessageBody(role="assistant", tool_calls=[_tool_call(item, place)])
        case "function_call_output":
            output = _parts(item.output, f"{place}.output")
            call_id = needed(item.call_id, f"{place}.call_id")
            return ChatMessageBody(role="tool", content=output, tool_call_id=call_id)
        case "item_reference":
            raise unsupported("input", "this server stores no items; send the item itself")
    role = needed(item.role, f"{place}.role")
    return ChatMessageBody(role=role, content=_parts(item.content, f"{place}.content"))


def _turn(messages: Sequence[ChatMessageBody]) -> ChatMessageBody:
    """The assistant's consecutive messages as one: reasoning, words and tool calls."""
    texts = [part for m in messages for part in m.content or () if isinstance(part, TextPart)]
    calls = [call for m in messages for call in m.tool_calls or ()]
    return ChatMessageBody(
        role="assistant",
        content=texts or (None if calls else ""),
        reasoning_content="".join(m.reasoning_content or "" for m in messages) or None,
        tool_calls=calls or None,
    )


def _tool_call(item: InputItem, place: str) -> dict[str, object]:
    return tool_call(
        needed(item.call_id, f"{place}.call_id"),
        needed(item.name, f"{place}.name"),
        needed(item.arguments, f"{place}.arguments"),
    )


def _parts(content: Content | None, place: str) -> list[TextPart]:
    if content is None:
        raise missing(place)
    return [text_part(text) for text in _texts(content, place)]


def _texts(content: Content, place: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [_text(part, f"{place}[{index}]") for index, part in enumerate(content)]


def _text(part: InputPart, place: str) -> str:
    if part.type in ("input_image", "input_file", "input_audio"):
        raise text_only(place, part.type)
    if part.type == "refusal":
        return needed(part.refusal, f"{place}.refusal")
    return needed(part.text, f"{place}.text")
