"""Request bodies of the HTTP API: every field with its type and range.

The OpenAPI document is generated from these structs. `null` means "not given" in every field.
The tables UNSUPPORTED list the fields that clients know and that are missing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from ....core.requests.sampling_params import COMPLETIONS, Logprobs, body_struct
from ...serving.reading import fields
from ...serving.reading.unknown_fields import UnsupportedFields
from .unsupported import IN_CHAT, IN_COMPLETIONS

PromptItem = str | int | list[int]


class JSONSchemaFormat(msgspec.Struct, kw_only=True):
    """The schema of a `response_format`."""

    name: fields.Text | None = None
    description: str | None = None
    schema: fields.Schema | None = None
    strict: bool | None = None
    """Whether a keyword that is not supported is refused. If not, a header names it."""


class ResponseFormat(msgspec.Struct, kw_only=True):
    """OpenAI's form of an answer's grammar; vLLM's with `structural_tag`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JSONSchemaFormat | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None


if TYPE_CHECKING:

    class Sampled(fields.Sender, kw_only=True):
        """The declared parameters. These are read by name, all others as a group."""

        n: int | None = None
        max_tokens: int | None = None
        min_tokens: int | None = None
        prompt_logprobs: int | None = None
        logprob_token_ids: tuple[int, ...] | None = None
        truncate_prompt_tokens: int | None = None
else:
    Sampled = body_struct(COMPLETIONS, fields.Sender)


class SamplingFields(Sampled, kw_only=True):
    """The fields that completions and chat completions share."""

    model: fields.ModelName | None = None
    stream: bool | None = None
    stream_options: fields.StreamOptions | None = None
    # vLLM's additions
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    vllm_xargs: dict[str, Any] | None = None
    """Arguments of logits processors."""
    best_of: int | None = None
    """Only 1 and the value of `n` are accepted."""
    response_format: ResponseFormat | None = None
    structured_outputs: fields.StructuredOutputs | None = None
    # Names of older versions of vLLM for the fields of structured_outputs
    guided_json: fields.Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    session_id: fields.IgnoredText | None = None
    spaces_between_special_tokens: fields.IgnoredFlag | None = None
    """Text is made of the tokens' own bytes, so there are never such spaces."""


class CompletionBody(SamplingFields, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | Annotated[list[PromptItem], Meta(max_length=fields.MAX_IDS)]
    echo: bool | None = None
    logprobs: Logprobs | None = None
    add_special_tokens: bool | None = None

    UNSUPPORTED: ClassVar[UnsupportedFields] = IN_COMPLETIONS
    NESTED: ClassVar[fields.NestedFields] = {"stream_options": fields.StreamOptions}


class ImageURL(msgspec.Struct, kw_only=True):
    url: str | None = None
    detail: fields.IgnoredText | None = None


class ContentPart(msgspec.Struct, kw_only=True):
    """A text, or an image as a data URL."""

    type: str
    text: str | None = None
    image_url: str | ImageURL | None = None
    uuid: fields.Name | None = None
    """The client's name for the image. Later calls with the same key may send only the name."""


class ChatMessageBody(msgspec.Struct, kw_only=True):
    """One chat message. The tokenizer checks its fields, because it knows the chat template.

    The last fields are accepted because clients send answers back as they got them, nulls included.
    """

    role: str
    content: str | Annotated[list[ContentPart], Meta(max_length=fields.MAX_PARTS)] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    """vLLM's newer name of reasoning_content."""
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    annotations: list[Any] | None = None
    audio: dict[str, Any] | None = None
    function_call: dict[str, Any] | None = None


class FunctionBody(msgspec.Struct, kw_only=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: fields.FunctionNameText
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(msgspec.Struct, kw_only=True):
    type: Literal["function"]
    function: FunctionBody


class FunctionName(msgspec.Struct, kw_only=True):
    name: str


class NamedToolChoice(msgspec.Struct, kw_only=True, tag_field="type", tag="function"):
    """The function that must be called."""

    function: FunctionName


class AllowedTool(msgspec.Struct, kw_only=True):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(msgspec.Struct, kw_only=True):
    """The model sees all tools, but may call only these."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=fields.MAX_TOOLS)]


class AllowedToolChoice(msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    allowed_tools: AllowedTools


Tools = Annotated[list[ToolBody], Meta(max_length=fields.MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolChoice
Documents = Annotated[list[dict[str, str]], Meta(max_length=fields.MAX_DOCUMENTS)]
"""Texts that the chat template shows; it knows their names, such as "title" and "text"."""
Messages = Annotated[list[ChatMessageBody], Meta(min_length=1, max_length=fields.MAX_MESSAGES)]


class ChatBody(SamplingFields, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: fields.Count | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Documents | None = None
    reasoning_effort: fields.ReasoningEffort | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    """Tokens of reasoning after which its end is forced; -1: no limit."""
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: fields.Ignored | None = None
    prompt_cache_retention: fields.IgnoredText | None = None
    safety_identifier: fields.IgnoredText | None = None

    UNSUPPORTED: ClassVar[UnsupportedFields] = IN_CHAT
    NESTED: ClassVar[fields.NestedFields] = {
        "stream_options": fields.StreamOptions,
        "messages": ChatMessageBody,
    }


class TokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /tokenize: a prompt or messages."""

    model: fields.ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Documents | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None

    NESTED: ClassVar[fields.NestedFields] = {"messages": ChatMessageBody}


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /detokenize."""

    tokens: Annotated[list[int], Meta(max_length=fields.MAX_IDS)]
    model: fields.ModelName | None = None
