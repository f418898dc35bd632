"""Fields of OpenAI's and vLLM's APIs that this server knows but does not have.

Many clients always send them. A value that changes nothing passes; every other value is refused
with the reason. The OpenAPI document lists them with the values that pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ...http.errors import APIError
from .bodies import ChatBody, CompletionBody

_LONGEST_NEUTRAL = 64
"""Bytes of JSON. A longer value is not decoded, because neutral values are shorter."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field that only null and the `neutral` values may have."""

    reason: str
    neutral: tuple[Any, ...] = ()


UnsupportedFields = Mapping[str, Unsupported]

_NO_TRANSFER = "KV blocks are not transferred between servers"
_NO_MEDIA = "this server reads and writes text only"

_BOTH = {
    "early_stopping": Unsupported("there is no beam search", (False,)),
    "ec_transfer_params": Unsupported(_NO_TRANSFER),
    "guided_decoding_backend": Unsupported("the server chooses it (--grammar-backend)"),
    "kv_transfer_params": Unsupported(_NO_TRANSFER),
    "length_penalty": Unsupported("there is no beam search", (1.0,)),
    "logits_processors": Unsupported("name their arguments in vllm_xargs", ([],)),
    "repetition_detection": Unsupported("use repetition_penalty"),
    "return_mm_kwargs": Unsupported(_NO_MEDIA, (False,)),
    "return_token_offsets": Unsupported("use return_token_ids", (False,)),
    "routed_experts_prompt_start": Unsupported("routing of experts is not returned"),
    "service_tier": Unsupported("use 'auto' or 'default'", ("auto", "default")),
    "store": Unsupported("this server stores no answers", (False,)),
    "use_beam_search": Unsupported("there is no beam search", (False,)),
    "watermarking": Unsupported("answers have no watermark", (False,)),
}
_IN_COMPLETIONS = {
    "prompt_embeds": Unsupported("send text or token ids"),
    "suffix": Unsupported("this model does not fill in the middle", ("",)),
    "thinking_token_budget": Unsupported("use chat completions, where reasoning has an end"),
}
_IN_CHAT = {
    "add_special_tokens": Unsupported("the chat template writes the special tokens", (False,)),
    "audio": Unsupported(_NO_MEDIA),
    "chat_template": Unsupported("the template of the server is used (--chat-template)"),
    "echo": Unsupported("the client has the messages", (False,)),
    "function_call": Unsupported("use tool_choice", ("none", "auto")),
    "functions": Unsupported("use tools", ([],)),
    "media_io_kwargs": Unsupported(_NO_MEDIA, ({},)),
    "mm_processor_kwargs": Unsupported(_NO_MEDIA, ({},)),
    "modalities": Unsupported(_NO_MEDIA, (["text"],)),
    "moderation": Unsupported("this server does not moderate"),
    "prediction": Unsupported("use --speculative-method ngram"),
    "return_prompt_text": Unsupported("use return_token_ids", (False,)),
    "verbosity": Unsupported("ask for it in the messages", ("medium",)),
    "web_search_options": Unsupported("this server does not search"),
}
UNSUPPORTED: Mapping[type, UnsupportedFields] = {
    CompletionBody: _BOTH | _IN_COMPLETIONS,
    ChatBody: _BOTH | _IN_CHAT,
}


def unsupported_fields(kind: type) -> UnsupportedFields:
    """The unsupported fields of a body. Bodies of other APIs have a table of their own."""
    return UNSUPPORTED.get(kind) or getattr(kind, "UNSUPPORTED", {})


def check_neutral(name: str, value: msgspec.Raw, field: Unsupported) -> None:
    """Raise APIError (400) for a value that asks for something that this server does not have."""
    if not is_neutral(value, field):
        raise unsupported(name, field.reason)


def is_neutral(value: msgspec.Raw, field: Unsupported) -> bool:
    """Whether a JSON value changes nothing."""
    raw = bytes(value)
    return len(raw) <= _LONGEST_NEUTRAL and msgspec.json.decode(raw) in (None, *field.neutral)


def unsupported(param: str, reason: str) -> APIError:
    """The error for a field that asks for something that this server does not have."""
    return APIError(400, f"{param} is not supported: {reason}", param=param, code="unsupported")
