"""Request bodies of Anthropic's Messages API: every field with its type and range."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from ...core.requests.sampling_params import MAX_STOP_STRINGS, StopText
from ..serving.reading import fields
from ..serving.reading.unknown_fields import Unsupported, UnsupportedFields

BlockType = Literal[
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "image",
    "document",
    "search_result",
]
"""The last two are refused with a reason."""


class ImageSource(msgspec.Struct, kw_only=True):
    """The data of an image, or of a document, which is refused."""

    type: str
    data: str | None = None
    url: str | None = None
    # Ignored: the bytes say what they are.
    media_type: str | None = None


class Block(msgspec.Struct, kw_only=True):
    """One block of a message's content. `type` decides which fields it needs."""

    type: BlockType
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list[ResultBlock], Meta(max_length=fields.MAX_PARTS)] | None = None
    is_error: bool | None = None
    source: ImageSource | str | None = None
    # Ignored: prompts are cached without being asked, and answers have no citations.
    cache_control: fields.Ignored | None = None
    citations: list[fields.Ignored] | fields.Ignored | None = None
    signature: str | None = None
    data: str | None = None


class ResultBlock(msgspec.Struct, kw_only=True):
    """One block of a tool's result."""

    type: Literal["text", "image", "document", "search_result"]
    text: str | None = None
    source: ImageSource | str | None = None
    cache_control: fields.Ignored | None = None


class SystemBlock(msgspec.Struct, kw_only=True):
    type: Literal["text"]
    text: str
    cache_control: fields.Ignored | None = None
    citations: list[fields.Ignored] | fields.Ignored | None = None


class AnthropicMessage(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=fields.MAX_PARTS)]


class AnthropicMetadata(msgspec.Struct, kw_only=True):
    user_id: Annotated[str, Meta(max_length=512)] | None = None


class AnthropicTool(msgspec.Struct, kw_only=True):
    """A function that the model may call; `input_schema` is a JSON schema."""

    type: Literal["custom"] | None = None
    name: fields.FunctionNameText
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: fields.Ignored | None = None


class AnthropicToolChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    """Needed by the type "tool", the function that must be called."""
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """Asks chat templates that have the choice for reasoning, or for none."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """Tokens of reasoning after which its end is forced. Ignored if the model has no reasoning that
    the server knows."""
    display: str | None = None  # ignored


class OutputFormat(msgspec.Struct, kw_only=True):
    """The answer is JSON that follows this schema."""

    type: Literal["json_schema"]
    schema: fields.Schema


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: fields.ReasoningEffort | None = None
    format: OutputFormat | None = None


class CountTokensBody(msgspec.Struct, kw_only=True):
    """The body of POST /v1/messages/count_tokens, and the part of a message's body that its prompt
    is made of."""

    model: fields.ModelName
    messages: Annotated[list[AnthropicMessage], Meta(min_length=1, max_length=fields.MAX_MESSAGES)]
    output_config: OutputConfig | None = None
    system: str | Annotated[list[SystemBlock], Meta(max_length=fields.MAX_PARTS)] | None = None
    thinking: Thinking | None = None
    tool_choice: AnthropicToolChoice | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=fields.MAX_TOOLS)] | None = None

    NESTED: ClassVar[fields.NestedFields] = {"messages": AnthropicMessage}
    UNSUPPORTED: ClassVar[UnsupportedFields] = {
        "context_management": Unsupported("the client edits its messages itself"),
        "mcp_servers": Unsupported("this server calls no other servers", ([],)),
        "output_format": Unsupported("use output_config"),
    }


class MessagesBody(CountTokensBody, kw_only=True):
    """The body of POST /v1/messages."""

    max_tokens: fields.PositiveCount
    metadata: AnthropicMetadata | None = None
    stop_sequences: Annotated[list[StopText], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    request_timeout: fields.Seconds | None = None
    """The request ends after this time; tokenmill's own field."""
    cache_control: fields.Ignored | None = None
    inference_geo: fields.IgnoredText | None = None
    service_tier: Annotated[Literal["auto", "standard_only"], fields.NO_EFFECT] | None = None

    UNSUPPORTED: ClassVar[UnsupportedFields] = {
        **CountTokensBody.UNSUPPORTED,
        "container": Unsupported("this server runs no code"),
        "speed": Unsupported("there is one speed", ("standard",)),
    }
