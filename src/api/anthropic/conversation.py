"""Reads the chat of a Messages call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from ...core.requests.grammar import Grammar
from ..chat.conversation import Conversation
from ..chat.grammar_fields import GrammarFields
from ..chat.messages import ChatMessage, ContentPart, Images, missing, needed, not_read, tool_call
from ..chat.start import ChatRequest
from ..chat.tools import ToolMode, ToolUse, definition, tool_use
from ..serving.reading.fields import Sender
from ..serving.reading.unknown_fields import unsupported
from .bodies import (
    AnthropicMessage,
    Block,
    CountTokensBody,
    ImageSource,
    MessagesBody,
    OutputConfig,
    ResultBlock,
)

_MODES: dict[str, ToolMode] = {"auto": "auto", "any": "required", "none": "none"}
_ERROR = "Error: "
"""Begins the result of a call that failed, as in most adapters of this API."""


def read_chat(body: MessagesBody) -> ChatRequest:
    """The chat of a call. Raises APIError with the field's name."""
    user = body.metadata.user_id if body.metadata else None
    return ChatRequest(
        model=body.model,
        conversation=read_conversation(body),
        tools=read_tools(body),
        sampled={
            "max_tokens": body.max_tokens,
            "stop": body.stop_sequences,
            "temperature": body.temperature,
            "top_k": body.top_k,
            "top_p": body.top_p,
        },
        grammar=_grammar_fields(body.output_config),
        sender=Sender(user=user, request_timeout=body.request_timeout),
        is_streamed=bool(body.stream),
        thinking_budget=body.thinking.budget_tokens if body.thinking else None,
    )


def read_conversation(body: CountTokensBody) -> Conversation:
    """The conversation of a call. Raises APIError with the field's name.

    If it ends with a message of the assistant, the model continues that message, as in Anthropic's
    API.
    """
    images, thinking = Images(), body.thinking
    messages = list(_messages(body, images))
    return Conversation(
        messages=messages,
        images=images.found,
        continue_final_message=messages[-1].role == "assistant",
        template_kwargs={"enable_thinking": thinking.type != "disabled"} if thinking else None,
        reasoning_effort=body.output_config.effort if body.output_config else None,
    )


def read_tools(body: CountTokensBody) -> ToolUse:
    """The tools of a call. Raises APIError (400)."""
    tools = [definition(t.name, t.description, t.input_schema, t.strict) for t in body.tools or ()]
    choice = body.tool_choice
    if choice is None:
        return tool_use(tools, None)
    is_parallel = not choice.disable_parallel_tool_use
    if choice.type == "tool":
        name = needed(choice.name, "tool_choice.name")
        return tool_use(tools, None, named=name, is_parallel=is_parallel)
    return tool_use(tools, _MODES[choice.type], is_parallel=is_parallel)


def _grammar_fields(config: OutputConfig | None) -> GrammarFields:
    if config is None or config.format is None:
        return GrammarFields()
    read = partial(Grammar.json_schema, config.format.schema, is_strict=True)
    return GrammarFields(found=(("output_config.format", read),))


def _messages(body: CountTokensBody, images: Images) -> Iterator[ChatMessage]:
    if body.system:
        text = body.system
        parts = text if isinstance(text, str) else [ContentPart(text=block.text) for block in text]
        yield ChatMessage(role="system", content=parts)
    for index, message in enumerate(body.messages):
        yield from _turn(message, f"messages[{index}].content", images)


def _turn(message: AnthropicMessage, where: str, images: Images) -> Iterator[ChatMessage]:
    """A message, and before it one for each result of a tool that it has."""
    if isinstance(message.content, str):
        yield ChatMessage(role=message.role, content=message.content)
        return
    parts, thoughts, calls = [], [], []
    for index, block in enumerate(message.content):
        place = f"{where}[{index}]"
        match block.type:
            case "text":
                parts.append(ContentPart(text=needed(block.text, f"{place}.text")))
            case "image":
                parts.append(_image(block, place, images))
            case "thinking":
                thoughts.append(needed(block.thinking, f"{place}.thinking"))
            case "tool_use":
                calls.append(_tool_call(block, place))
            case "tool_result":
                yield _tool_result(block, place, images)
            case "redacted_thinking":
                pass  # encrypted: only the server that wrote it can read it
            case _:
                raise not_read(place, block.type)
    if parts or calls or all(block.type != "tool_result" for block in message.content):
        yield ChatMessage(
            role=message.role,
            content=parts or (None if calls else ""),
            reasoning_content="".join(thoughts) or None,
            tool_calls=calls or None,
        )


def _tool_call(block: Block, place: str) -> dict[str, object]:
    return tool_call(
        needed(block.id, f"{place}.id"),
        needed(block.name, f"{place}.name"),
        msgspec.json.encode(block.input or {}).decode(),
    )


def _tool_result(block: Block, place: str, images: Images) -> ChatMessage:
    """The result as a message. Templates have no field for a failed call, so a word says it."""
    content = _result_content(block.content, f"{place}.content", images)
    return ChatMessage(
        role="tool",
        tool_call_id=needed(block.tool_use_id, f"{place}.tool_use_id"),
        content=_marked(content) if block.is_error else content,
    )


def _marked(content: str | list[ContentPart]) -> str | list[ContentPart]:
    if isinstance(content, str):
        return _ERROR + content
    if content and content[0].type == "text":
        return [ContentPart(text=_ERROR + (content[0].text or "")), *content[1:]]
    return [ContentPart(text=_ERROR), *content] if content else _ERROR


def _result_content(
    content: str | Sequence[ResultBlock] | None, place: str, images: Images
) -> str | list[ContentPart]:
    if content is None or isinstance(content, str):
        return content or ""
    parts = []
    for index, block in enumerate(content):
        if block.type == "image":
            parts.append(_image(block, f"{place}[{index}]", images))
        elif block.type == "text":
            parts.append(ContentPart(text=needed(block.text, f"{place}[{index}].text")))
        else:
            raise not_read(f"{place}[{index}]", block.type)
    return parts


def _image(block: Block | ResultBlock, place: str, images: Images) -> ContentPart:
    source = block.source
    if not isinstance(source, ImageSource):
        raise missing(f"{place}.source")
    if source.type == "url":
        return images.add(needed(source.url, f"{place}.source.url"), place)
    if source.type != "base64":
        raise unsupported(f"{place}.source", f"use the type 'base64', not {source.type!r:.40}")
    return images.add(f"data:;base64,{needed(source.data, f'{place}.source.data')}", place)
