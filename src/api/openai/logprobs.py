"""Log-probabilities in the shapes of OpenAI's two endpoints, and vLLM's shape for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from ...core.interfaces import Tokenizer
from ...core.plan import TokenLogprobs
from .responses import (
    ChatLogprobs,
    CompletionLogprobs,
    ContentLogprob,
    PromptTokenLogprob,
    TopLogprob,
)

LEAST = -9999.0
"""Stands for a log-probability of minus infinity, which JSON does not have."""

ID = "token_id:"
"""Begins a token's name under `return_tokens_as_token_ids`, as in vLLM."""


@dataclass(frozen=True, slots=True)
class TokenNames:
    """How an answer writes tokens: as text, or as ids."""

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


Scored = tuple[int, TokenLogprobs | None]
"""A token id and its log-probability. The first token of a prompt has none."""


def scored_prompt(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]
) -> list[Scored]:
    """The tokens of a prompt with their log-probabilities."""
    return list(zip(token_ids, logprobs, strict=False))  # shorter, if it was ended early


def completion_logprobs(
    scored: Sequence[Scored], names: TokenNames, offset: int, num_top: int | None
) -> tuple[CompletionLogprobs, int]:
    """Logprobs in the shape of /v1/completions, and the text offset after these tokens.

    `offset` is the number of characters before the first token. Each token gets the `num_top` most
    likely ones, or all that are known.
    """
    offsets = []
    for token_id, _ in scored:
        offsets.append(offset)
        offset += _num_chars(names.raw(token_id))
    answer = CompletionLogprobs(
        tokens=[names.unique(token_id) for token_id, _ in scored],
        token_logprobs=[one if one is None else max(one.logprob, LEAST) for _, one in scored],
        top_logprobs=[
            one if one is None else _top_by_name(one, names, num_top) for _, one in scored
        ],
        text_offset=offsets,
    )
    return answer, offset


def _top_by_name(found: TokenLogprobs, names: TokenNames, num_top: int | None) -> dict[str, float]:
    """The most likely tokens and, as in OpenAI's API, always the sampled one."""
    return {
        names.unique(token_id): max(value, LEAST)
        for token_id, value in (*found.top[:num_top], (found.token_id, found.logprob))
    }


def prompt_logprobs(
    logprobs: Sequence[TokenLogprobs | None], tokenizer: Tokenizer, num_top: int
) -> list[dict[str, PromptTokenLogprob] | None]:
    """vLLM's `prompt_logprobs`: by token id, each prompt token and the `num_top` most likely ones.
    The first token has none."""
    names = TokenNames(tokenizer, as_ids=False)
    return [one if one is None else _by_id(one, names, num_top) for one in logprobs]


def _by_id(found: TokenLogprobs, names: TokenNames, num_top: int) -> dict[str, PromptTokenLogprob]:
    top = ((rank, *one) for rank, one in enumerate(found.top[:num_top], start=1))
    return {
        str(token_id): PromptTokenLogprob(
            logprob=max(value, LEAST), rank=rank, decoded_token=names.text(token_id)
        )
        for rank, token_id, value in chain(top, ((found.rank, found.token_id, found.logprob),))
    }


def chat_logprobs(logprobs: Sequence[TokenLogprobs], names: TokenNames) -> ChatLogprobs:
    """Logprobs in the shape of /v1/chat/completions, one entry per token."""
    return ChatLogprobs(content=[_content(found, names) for found in logprobs])


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


def _num_chars(raw: bytes) -> int:
    """Number of characters that begin in these bytes: UTF-8's continuation bytes do not count."""
    return sum(byte & 0xC0 != 0x80 for byte in raw)
