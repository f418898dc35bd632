"""Answers of the HTTP API. A field that is UNSET is not sent; every other field is."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ..chat.logprobs import ContentLogprob
from ..chat.reading import EndReason
from .request_metrics import AnswerMetrics


class ImageTokens(msgspec.Struct, kw_only=True):
    image: int


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int
    multimodal_tokens: ImageTokens | UnsetType = UNSET
    """Tokens of the prompt in whose places images stand; sent if there are any."""


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    accepted_prediction_tokens: int | UnsetType = UNSET
    """Draft tokens that were accepted; sent if a speculative method drafted tokens."""
    rejected_prediction_tokens: int | UnsetType = UNSET
    """Draft tokens that were rejected; they are not part of completion_tokens."""
    reasoning_tokens: int | UnsetType = UNSET
    """Tokens of the reasoning, without its marks; sent at the end of a chat if the server has a
    reasoning parser for the model."""


class Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """Sent if at least one of its fields is set."""


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptTokenLogprob(msgspec.Struct, kw_only=True):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptTokenLogprob] | None]
"""vLLM's shape: for each prompt token, tokens by id. The first prompt token has none."""


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: EndReason | None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class CompletionResponse(msgspec.Struct, kw_only=True):
    """The answer of /v1/completions, and each chunk of its stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET
    metrics: AnswerMetrics | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    """Not in the chunks of a stream, except the one with the usage at the end."""


class ChatLogprobs(msgspec.Struct, kw_only=True):
    content: list[ContentLogprob]
    refusal: None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class ChatToolCall(msgspec.Struct, kw_only=True):
    """A tool call, or in a stream a piece of one: only the first piece has id, type and name."""

    index: int | UnsetType = UNSET
    """Number of the call in the answer; only in streams."""
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionCall


class ChatMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | None
    refusal: None = None
    annotations: list[Any] = []
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    """vLLM's older name of `reasoning`. Clients read one or the other."""


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: EndReason | None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatResponse(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: AnswerMetrics | UnsetType = UNSET
    system_fingerprint: str
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChatDelta(msgspec.Struct, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: EndReason | None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET
    metrics: AnswerMetrics | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    """Only in the chunk with the usage at the end."""
    prompt_token_ids: list[int] | UnsetType = UNSET


class Embedding(msgspec.Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    """Numbers, or the base64 text of their bytes as float32."""


class EmbeddingUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "tokenmill"
    root: str
    max_model_len: int


class ModelList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[ModelCard]


class TokenizeResponse(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    prompt: str


class TokenizerInfoResponse(msgspec.Struct, kw_only=True):
    tokenizer_class: str
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    chat_template: str | None
