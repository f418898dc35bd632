"""Answers of Anthropic's Messages API, and the events of its streams."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class ThinkingTokens(msgspec.Struct, kw_only=True):
    thinking_tokens: int
    """They are part of `output_tokens`."""


class MessageUsage(msgspec.Struct, kw_only=True):
    """Token counts. The first three numbers together are the tokens of the prompt.

    The fields that are always null or "standard" are those of tools and tiers that only Anthropic's
    servers have.
    """

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens | None = None
    cache_creation: None = None
    server_tool_use: None = None
    service_tier: Literal["standard"] = "standard"
    inference_geo: None = None
    speed: None = None


class TextBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class DirectCaller(msgspec.Struct, frozen=True, tag_field="type", tag="direct"):
    """The model itself made the call, not a program of another tool."""


class ToolUseBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller = DirectCaller()


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class Message(msgspec.Struct, kw_only=True):
    """The answer of /v1/messages. A stream begins with one without content and stop reason."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    container: None = None
    diagnostics: None = None
    stop_details: None = None


class TokenCount(msgspec.Struct, kw_only=True):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int


class MessageStart(msgspec.Struct, kw_only=True, tag_field="type", tag="message_start"):
    message: Message


class ContentBlockStart(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class TextDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class InputJsonDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


AnswerDelta = TextDelta | ThinkingDelta | InputJsonDelta


class ContentBlockDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: AnswerDelta


class ContentBlockStop(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_stop"):
    index: int


class MessageEnd(msgspec.Struct, kw_only=True):
    stop_reason: StopReason | None
    stop_sequence: str | None
    container: None = None
    stop_details: None = None


class MessageDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="message_delta"):
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    pass


Event = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | Ping
)
