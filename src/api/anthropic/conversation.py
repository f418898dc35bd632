"""Translates the body of a Messages call into the body of a chat completion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ..openai.reading.bodies import (
    ChatBody,
    ChatMessageBody,
    JSONSchemaFormat,
    ResponseFormat,
    TextPart,
    ToolChoice,
)
from ..openai.reading.chat_parts import (
    named_tool,
    needed,
    schema_format,
    text_only,
    text_part,
    tool,
    tool_call,
)
from ..serving.reading.fields import StreamOptions
from .bodies import (
    AnthropicMessage,
    AnthropicToolChoice,
    Block,
    CountTokensBody,
    MessagesBody,
    OutputConfig,
    ResultBlock,
)

_TOOL_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}
_ERROR = "Error: "
"""Begins the result of a call that failed, as in most adapters of this API."""


def chat_body(body: CountTokensBody) -> ChatBody:
    """The chat completion that a Messages call means.

    If a conversation ends with a message of the assistant, the model continues that message, as in
    Anthropic's API. Raises APIError with the field's name.
    """
    messages = list(_messages(body))
    continues = messages[-1].role == "assistant"
    chat = ChatBody(
        model=body.model,
        messages=messages,
        continue_final_message=continues,
        chat_template_kwargs=_template_kwargs(body),
        reasoning_effort=body.output_config.effort if body.output_config else None,
        response_format=_response_format(body.output_config),
        tools=[tool(t.name, t.description, t.input_schema, t.strict) for t in body.tools or ()],
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
    )
    return _sampled(chat, body) if isinstance(body, MessagesBody) else chat


def _sampled(chat: ChatBody, body: MessagesBody) -> ChatBody:
    return msgspec.structs.replace(
        chat,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        stream=body.stream,
        request_timeout=body.request_timeout,
        stream_options=StreamOptions(include_usage=True) if body.stream else None,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        thinking_token_budget=body.thinking.budget_tokens if body.thinking else None,
        user=body.metadata.user_id if body.metadata else None,
    )


def _template_kwargs(body: CountTokensBody) -> dict[str, object] | None:
    return {"enable_thinking": body.thinking.type != "disabled"} if body.thinking else None


def _response_format(config: OutputConfig | None) -> ResponseFormat | None:
    if config is None or config.format is None:
        return None
    return schema_format(JSONSchemaFormat(schema=config.format.schema, strict=True))


def _tool_choice(choice: AnthropicToolChoice | None) -> ToolChoice | None:
    if choice is None or choice.type != "tool":
        return _TOOL_CHOICES[choice.type] if choice else None
    return named_tool(needed(choice.name, "tool_choice.name"))


def _messages(body: CountTokensBody) -> Iterator[ChatMessageBody]:
    if body.system:
        text = body.system
        parts = text if isinstance(text, str) else [text_part(block.text) for block in text]
        yield ChatMessageBody(role="system", content=parts)
    for index, message in enumerate(body.messages):
        yield from _turn(message, f"messages[{index}].content")


def _turn(message: AnthropicMessage, where: str) -> Iterator[ChatMessageBody]:
    """A message, and before it one for each result of a tool that it has."""
    if isinstance(message.content, str):
        yield ChatMessageBody(role=message.role, content=message.content)
        return
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(message.content):
        place = f"{where}[{index}]"
        match block.type:
            case "text":
                texts.append(text_part(needed(block.text, f"{place}.text")))
            case "thinking":
                thoughts.append(needed(block.thinking, f"{place}.thinking"))
            case "tool_use":
                calls.append(_tool_call(block, place))
            case "tool_result":
                yield _tool_result(block, place)
            case "redacted_thinking":
                pass  # encrypted: only the server that wrote it can read it
            case _:
                raise text_only(place, block.type)
    if texts or calls or all(block.type != "tool_result" for block in message.content):
        yield ChatMessageBody(
            role=message.role,
            content=texts or (None if calls else ""),
            reasoning_content="".join(thoughts) or None,
            tool_calls=calls or None,
        )


def _tool_call(block: Block, place: str) -> dict[str, object]:
    return tool_call(
        needed(block.id, f"{place}.id"),
        needed(block.name, f"{place}.name"),
        msgspec.json.encode(block.input or {}).decode(),
    )


def _tool_result(block: Block, place: str) -> ChatMessageBody:
    """The result as a message. OpenAI's API has no field for a failed call, so a word says it."""
    content = _result_content(block.content, f"{place}.content")
    return ChatMessageBody(
        role="tool",
        tool_call_id=needed(block.tool_use_id, f"{place}.tool_use_id"),
        content=_marked(content) if block.is_error else content,
    )


def _marked(content: str | list[TextPart]) -> str | list[TextPart]:
    if isinstance(content, str):
        return _ERROR + content
    return [text_part(_ERROR + (content[0].text or "")), *content[1:]] if content else _ERROR


def _result_content(
    content: str | Sequence[ResultBlock] | None, place: str
) -> str | list[TextPart]:
    if content is None or isinstance(content, str):
        return content or ""
    parts = []
    for index, block in enumerate(content):
        if block.type != "text":
            raise text_only(f"{place}[{index}]", block.type)
        parts.append(text_part(needed(block.text, f"{place}[{index}].text")))
    return parts
