"""Request bodies of the HTTP API: every field with its type and range.

The OpenAPI document is generated from these structs. `null` means "not given" in every field.
`unsupported` lists the fields that clients know and that are missing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from ....core.request_options import (
    MAX_CACHE_SALT,
    MAX_CLIENT_ID,
    MAX_METADATA_KEY,
    MAX_METADATA_PAIRS,
    MAX_METADATA_VALUE,
    MAX_USER,
)
from ....core.sampling_params import COMPLETIONS, Logprobs, body_struct

MAX_IDS = 1 << 20
"""Token ids in one list: no model has a longer context."""
MAX_MESSAGES = 1 << 14
MAX_PARTS = 1 << 10
MAX_DOCUMENTS = 1 << 10
MAX_TOOLS = 128
"""As in OpenAI's API."""

Text = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_CLIENT_ID)]
ModelName = Annotated[str, Meta(max_length=256)]
Count = Annotated[int, Meta(ge=0, le=2**31)]
Seconds = Annotated[float, Meta(gt=0, le=2**31)]
PositiveCount = Annotated[int, Meta(ge=1, le=2**31)]
PromptItem = str | int | list[int]
Metadata = Annotated[
    dict[
        Annotated[str, Meta(min_length=1, max_length=MAX_METADATA_KEY)],
        Annotated[str, Meta(max_length=MAX_METADATA_VALUE)],
    ],
    Meta(max_length=MAX_METADATA_PAIRS),
]
FunctionNameText = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    """OpenAI's padding against traffic analysis. Not supported: only false is accepted."""


Schema = dict[str, Any] | bool
"""A JSON schema."""


class JSONSchemaFormat(msgspec.Struct, kw_only=True):
    """The schema of a `response_format`."""

    name: Text | None = None
    description: str | None = None
    schema: Schema | None = None
    strict: bool | None = None
    """Whether a keyword that is not supported is refused. If not, a header names it."""


class ResponseFormat(msgspec.Struct, kw_only=True):
    """OpenAI's form of an answer's grammar; vLLM's with `structural_tag`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JSONSchemaFormat | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """vLLM's form of an answer's grammar: exactly one of its first six fields is given."""

    json: Schema | str | None = None
    """A schema, or its JSON text."""
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """In the syntax of Lark, or of GBNF if it has "::="."""
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None
    # Options of grammars for JSON
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    """Objects whose schema lists properties have no others, unless the schema allows them."""
    disable_fallback: bool | None = None
    """Without effect: there is one grammar backend, so there is never a fallback."""


class Ignored(msgspec.Struct):
    """An object whose fields are skipped and not built."""


NO_EFFECT = Meta(description="Accepted and ignored: it never changes an answer.")
IgnoredText = Annotated[str, NO_EFFECT]
IgnoredFlag = Annotated[bool, NO_EFFECT]


def ignored_fields(kind: type) -> frozenset[str]:
    """The fields of a body that clients send, and that never change an answer."""
    return frozenset(
        field.encode_name
        for field in msgspec.structs.fields(kind)
        if any(one is Ignored or NO_EFFECT in get_args(one) for one in get_args(field.type))
    )


if TYPE_CHECKING:

    class Sampled(msgspec.Struct, kw_only=True):
        """The declared parameters. These are read by name, all others as a group."""

        n: int | None = None
        max_tokens: int | None = None
        min_tokens: int | None = None
        prompt_logprobs: int | None = None
        logprob_token_ids: tuple[int, ...] | None = None
        truncate_prompt_tokens: int | None = None
else:
    Sampled = body_struct(COMPLETIONS)


class SamplingFields(Sampled, kw_only=True):
    """The fields that completions and chat completions share."""

    model: ModelName | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Meta(max_length=MAX_USER)] | None = None
    # vLLM's additions
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31)] | None = None
    request_id: Name | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=MAX_CACHE_SALT)] | None = None
    metadata: Metadata | None = None
    request_timeout: Seconds | None = None
    """The request ends after this time; tokenmill's own field."""
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    vllm_xargs: dict[str, Any] | None = None
    """Arguments of logits processors."""
    best_of: int | None = None
    """Only 1 and the value of `n` are accepted."""
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    # Names of older versions of vLLM for the fields of structured_outputs
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    session_id: IgnoredText | None = None
    spaces_between_special_tokens: IgnoredFlag | None = None
    """Text is made of the tokens' own bytes, so there are never such spaces."""


class CompletionBody(SamplingFields, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | Annotated[list[PromptItem], Meta(max_length=MAX_IDS)]
    echo: bool | None = None
    logprobs: Logprobs | None = None
    add_special_tokens: bool | None = None


class TextPart(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None


class ChatMessageBody(msgspec.Struct, kw_only=True):
    """One chat message. The tokenizer checks its fields, because it knows the chat template.

    The last fields are accepted because clients send answers back as they got them, nulls included.
    """

    role: str
    content: str | Annotated[list[TextPart], Meta(max_length=MAX_PARTS)] | None = None
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

    name: FunctionNameText
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
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolChoice(msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    allowed_tools: AllowedTools


Tools = Annotated[list[ToolBody], Meta(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolChoice
Documents = Annotated[list[dict[str, str]], Meta(max_length=MAX_DOCUMENTS)]
"""Texts that the chat template shows; it knows their names, such as "title" and "text"."""
Messages = Annotated[list[ChatMessageBody], Meta(min_length=1, max_length=MAX_MESSAGES)]


class ChatBody(SamplingFields, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Documents | None = None
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    """Tokens of reasoning after which its end is forced; -1: no limit."""
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Ignored | None = None
    prompt_cache_retention: IgnoredText | None = None
    safety_identifier: IgnoredText | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /tokenize: a prompt or messages."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Documents | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /detokenize."""

    tokens: Annotated[list[int], Meta(max_length=MAX_IDS)]
    model: ModelName | None = None
