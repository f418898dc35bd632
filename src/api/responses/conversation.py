"""Reads the chat of a Responses call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

from ...core.requests.grammar import Grammar
from ...core.requests.sampling_params import RESPONSES, sampled_in
from ..chat.conversation import Conversation
from ..chat.grammar_fields import GrammarFields, schema_grammar, structured_fields
from ..chat.messages import (
    ChatMessage,
    ContentPart,
    Images,
    missing,
    needed,
    not_read,
    tool_call,
)
from ..chat.start import ChatRequest
from ..chat.tools import ToolUse, definition, tool_use
from ..http.errors import APIError
from ..serving.reading.unknown_fields import check_stream_options, unsupported
from .bodies import (
    AllowedFunctions,
    Content,
    InputItem,
    InputPart,
    NamedFunction,
    ResponsesBody,
)


def read_chat(body: ResponsesBody) -> ChatRequest:
    """The chat of a call. Raises APIError with the field's name."""
    has_logprobs = "message.output_text.logprobs" in (body.include or ())
    if body.top_logprobs and not has_logprobs:
        raise APIError(
            400,
            "top_logprobs needs 'message.output_text.logprobs' in include",
            param="top_logprobs",
        )
    images = Images()
    messages = list(read_messages(body, images))
    conversation = Conversation(
        messages=messages,
        images=images.found,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
    )
    check_stream_options(body.stream_options, body.stream)
    sampled = {name: getattr(body, name) for name in sampled_in(RESPONSES)}
    return ChatRequest(
        model=body.model,
        conversation=conversation,
        tools=_tools(body),
        sampled={
            **sampled,
            "max_tokens": body.max_output_tokens,
            "logprobs": (body.top_logprobs or 0) if has_logprobs else None,
        },
        grammar=_grammar_fields(body),
        sender=body,
        is_streamed=bool(body.stream),
    )


def _tools(body: ResponsesBody) -> ToolUse:
    tools = [definition(t.name, t.description, t.parameters, t.strict) for t in body.tools or ()]
    choice, is_parallel = body.tool_choice, body.parallel_tool_calls is not False
    if isinstance(choice, NamedFunction):
        return tool_use(tools, None, named=choice.name, is_parallel=is_parallel)
    if isinstance(choice, AllowedFunctions):
        names = [function.name for function in choice.tools]
        return tool_use(tools, choice.mode, allowed=names, is_parallel=is_parallel)
    return tool_use(tools, choice, is_parallel=is_parallel)


def _grammar_fields(body: ResponsesBody) -> GrammarFields:
    given, name = body.text.format if body.text else None, "text.format"
    if given is None or given.type == "text":
        return structured_fields(body.structured_outputs)
    if given.type == "json_object":
        return structured_fields(body.structured_outputs, (name, Grammar.json_object))
    read = partial(schema_grammar, name, name, given.schema, given.strict)
    return structured_fields(body.structured_outputs, (name, read))


def read_messages(body: ResponsesBody, images: Images) -> Iterator[ChatMessage]:
    """The messages of a call. Raises APIError with the field's name."""
    if body.instructions:
        yield ChatMessage(role="system", content=body.instructions)
    if isinstance(body.input, str):
        yield ChatMessage(role="user", content=body.input)
        return
    found = (_message(item, f"input[{index}]", images) for index, item in enumerate(body.input))
    for is_assistant, messages in groupby(found, lambda message: message.role == "assistant"):
        if is_assistant:
            yield _turn(list(messages))
        else:
            yield from messages


def _message(item: InputItem, place: str, images: Images) -> ChatMessage:
    """An item as a message of its own."""
    match item.type:
        case "reasoning":
            thoughts = _texts(item.content or "", place)
            return ChatMessage(role="assistant", reasoning_content="".join(thoughts))
        case "function_call":
            return ChatMessage(role="assistant", tool_calls=[_tool_call(item, place)])
        case "function_call_output":
            output = _parts(item.output, f"{place}.output", images)
            call_id = needed(item.call_id, f"{place}.call_id")
            return ChatMessage(role="tool", content=output, tool_call_id=call_id)
        case "item_reference":
            raise unsupported("input", "this server stores no items; send the item itself")
    role = needed(item.role, f"{place}.role")
    return ChatMessage(role=role, content=_parts(item.content, f"{place}.content", images))


def _turn(messages: Sequence[ChatMessage]) -> ChatMessage:
    """The assistant's consecutive messages as one: reasoning, words and tool calls."""
    texts = [part for m in messages for part in m.content or () if isinstance(part, ContentPart)]
    calls = [call for m in messages for call in m.tool_calls or ()]
    return ChatMessage(
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


def _parts(content: Content | None, place: str, images: Images) -> list[ContentPart]:
    if content is None:
        raise missing(place)
    if isinstance(content, str):
        return [ContentPart(text=content)]
    return [_part(part, f"{place}[{index}]", images) for index, part in enumerate(content)]


def _part(part: InputPart, place: str, images: Images) -> ContentPart:
    if part.type != "input_image":
        return ContentPart(text=_text(part, place))
    if part.file_id is not None:
        raise unsupported(f"{place}.file_id", "this server stores no files; use image_url")
    return images.add(needed(part.image_url, f"{place}.image_url"), place)


def _texts(content: Content, place: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [_text(part, f"{place}[{index}]") for index, part in enumerate(content)]


def _text(part: InputPart, place: str) -> str:
    if part.type in ("input_image", "input_file", "input_audio"):
        raise not_read(place, part.type)
    if part.type == "refusal":
        return needed(part.refusal, f"{place}.refusal")
    return needed(part.text, f"{place}.text")
