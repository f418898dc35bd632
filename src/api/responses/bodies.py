"""The request body of OpenAI's Responses API: every field with its type and range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from ...core.requests.sampling_params import RESPONSES, body_struct
from ..serving.reading import fields
from ..serving.reading.unknown_fields import Unsupported, UnsupportedFields

ItemType = Literal[
    "message", "function_call", "function_call_output", "reasoning", "item_reference"
]
"""The last one is refused with a reason."""
PartType = Literal[
    "input_text",
    "output_text",
    "text",
    "refusal",
    "reasoning_text",
    "summary_text",
    "input_image",
    "input_file",
    "input_audio",
]
"""The last two are refused with a reason."""
Include = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
_NO_STORE = "this server stores nothing; send the whole conversation as input"


class InputPart(msgspec.Struct, kw_only=True):
    """One part of an item's content."""

    type: PartType
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    """Refused with a reason."""
    detail: fields.IgnoredText | None = None


Content = str | Annotated[list[InputPart], Meta(max_length=fields.MAX_PARTS)]


class InputItem(msgspec.Struct, kw_only=True):
    """One item of the input. `type` decides which fields it needs; without it, it is a message.

    Clients send items of earlier answers back as they got them, nulls included.
    """

    type: ItemType | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Content | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content | None = None
    # Ignored: the content of a reasoning item is its text.
    summary: list[fields.Ignored] | None = None
    encrypted_content: str | None = None


class FunctionTool(msgspec.Struct, kw_only=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    type: Literal["function"]
    name: fields.FunctionNameText
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(msgspec.Struct, kw_only=True, tag_field="type", tag="function"):
    """The function that must be called."""

    name: str


class AllowedFunction(msgspec.Struct, kw_only=True):
    type: Literal["function"]
    name: str


class AllowedFunctions(msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """The model sees all tools, but may call only these."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedFunction], Meta(min_length=1, max_length=fields.MAX_TOOLS)]


FunctionChoice = Literal["none", "auto", "required"] | NamedFunction | AllowedFunctions


class TextFormat(msgspec.Struct, kw_only=True):
    """The form of the text; the type "json_schema" needs a `schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: fields.Text | None = None
    description: str | None = None
    schema: fields.Schema | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True):
    effort: fields.ReasoningEffort | None = None
    # Ignored: reasoning is not summarized.
    summary: str | None = None
    generate_summary: str | None = None


if TYPE_CHECKING:

    class Sampled(fields.Sender, kw_only=True):
        """The declared parameters. These are read by name, all others as a group."""

        frequency_penalty: float | None = None
        presence_penalty: float | None = None
        temperature: float | None = None
        top_p: float | None = None
else:
    Sampled = body_struct(RESPONSES, fields.Sender)


class ResponsesBody(Sampled, kw_only=True):
    """The body of POST /v1/responses."""

    model: fields.ModelName | None = None
    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=fields.MAX_MESSAGES)]
    instructions: str | None = None
    include: Annotated[list[Include], Meta(max_length=16)] | None = None
    max_output_tokens: fields.PositiveCount | None = None
    reasoning: ReasoningOptions | None = None
    stream: bool | None = None
    stream_options: fields.StreamOptions | None = None
    parallel_tool_calls: bool | None = None
    structured_outputs: fields.StructuredOutputs | None = None
    text: TextOptions | None = None
    tool_choice: FunctionChoice | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=fields.MAX_TOOLS)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """Needs "message.output_text.logprobs" in `include`."""
    # vLLM's additions
    # Hints, which never change an answer; the first three are sent back
    max_tool_calls: int | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    prompt_cache_options: fields.Ignored | None = None
    prompt_cache_retention: fields.IgnoredText | None = None

    NESTED: ClassVar[fields.NestedFields] = {"stream_options": fields.StreamOptions}

    UNSUPPORTED: ClassVar[UnsupportedFields] = {
        "background": Unsupported("answers are not computed in the background", (False,)),
        "context_management": Unsupported("the client edits its input itself", ([],)),
        "conversation": Unsupported(_NO_STORE),
        "moderation": Unsupported("this server does not moderate"),
        "previous_response_id": Unsupported(_NO_STORE),
        "prompt": Unsupported("this server stores no prompts"),
        "service_tier": Unsupported("use 'auto' or 'default'", ("auto", "default")),
        "store": Unsupported(_NO_STORE + ", and leave store out", (False,)),
        "truncation": Unsupported("shorten the input", ("disabled",)),
    }
