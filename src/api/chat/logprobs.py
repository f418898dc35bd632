"""Tokens of an answer with their texts and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ...core.interfaces import Tokenizer
from ...core.plan import TokenLogprobs

LEAST = -9999.0
"""Stands for a log-probability of minus infinity, which JSON does not have."""

ID = "token_id:"
"""Begins a token's name under `return_tokens_as_token_ids`, as in vLLM."""


@dataclass(frozen=True, slots=True)
class TokenNames:
    """The form of tokens in an answer: text, or ids."""

    tokenizer: Tokenizer
    as_ids: bool

    def text(self, token_id: int) -> str:
        """A token's text; bytes that are not UTF-8 become U+FFFD."""
        if self.as_ids:
            return f"{ID}{token_id}"
        return self.raw(token_id).decode("utf-8", errors="replace")

    def unique(self, token_id: int) -> str:
        """A token's text, or `bytes:\\xf0\\x9f` as OpenAI writes it if the bytes are not whole
        characters. Tokens that are different parts of characters keep different names."""
        raw = self.raw(token_id)
        try:
            return f"{ID}{token_id}" if self.as_ids else raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def raw(self, token_id: int) -> bytes:
        """The bytes that a token stands for."""
        return self.tokenizer.token_bytes(token_id)


class TopLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


def content_logprobs(logprobs: Sequence[TokenLogprobs], names: TokenNames) -> list[ContentLogprob]:
    """One entry per token, with the most likely ones in its place."""
    return [_content(found, names) for found in logprobs]


def _content(found: TokenLogprobs, names: TokenNames) -> ContentLogprob:
    return ContentLogprob(
        token=names.text(found.token_id),
        logprob=max(found.logprob, LEAST),
        bytes=list(names.raw(found.token_id)),
        top_logprobs=[_top(token_id, value, names) for token_id, value in found.top],
    )


def _top(token_id: int, logprob: float, names: TokenNames) -> TopLogprob:
    return TopLogprob(
        token=names.text(token_id),
        logprob=max(logprob, LEAST),
        bytes=list(names.raw(token_id)),
    )
