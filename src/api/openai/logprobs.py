"""Log-probabilities in the shapes of OpenAI's two endpoints."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.interfaces import Tokenizer
from ...core.plan import TokenLogprobs
from .responses import ChatLogprobs, CompletionLogprobs, ContentLogprob, TopLogprob

LEAST = -9999.0
"""Stands for a log-probability of minus infinity, which JSON does not have."""


def completion_logprobs(
    logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer, offset: int
) -> tuple[CompletionLogprobs, int]:
    """Logprobs in the shape of /v1/completions, and the text offset after these tokens.

    `offset` is the number of characters before the first token.
    """
    raws = [tokenizer.token_bytes(found.token_id) for found in logprobs]
    offsets = []
    for raw in raws:
        offsets.append(offset)
        offset += _num_chars(raw)
    answer = CompletionLogprobs(
        tokens=[_name(raw) for raw in raws],
        token_logprobs=[max(found.logprob, LEAST) for found in logprobs],
        top_logprobs=[_top_by_name(found, tokenizer) for found in logprobs],
        text_offset=offsets,
    )
    return answer, offset


def _top_by_name(found: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, float]:
    """The most likely tokens and, as in OpenAI's API, always the sampled one."""
    return {
        _name(tokenizer.token_bytes(token_id)): max(value, LEAST)
        for token_id, value in (*found.top, (found.token_id, found.logprob))
    }


def chat_logprobs(logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> ChatLogprobs:
    """Logprobs in the shape of /v1/chat/completions, one entry per token."""
    return ChatLogprobs(content=[_content(found, tokenizer) for found in logprobs])


def _content(found: TokenLogprobs, tokenizer: Tokenizer) -> ContentLogprob:
    raw = tokenizer.token_bytes(found.token_id)
    return ContentLogprob(
        token=_text(raw),
        logprob=max(found.logprob, LEAST),
        bytes=list(raw),
        top_logprobs=[_top(token_id, value, tokenizer) for token_id, value in found.top],
    )


def _top(token_id: int, logprob: float, tokenizer: Tokenizer) -> TopLogprob:
    raw = tokenizer.token_bytes(token_id)
    return TopLogprob(token=_text(raw), logprob=max(logprob, LEAST), bytes=list(raw))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")


def _name(raw: bytes) -> str:
    """A token's text, or `bytes:\\xf0\\x9f` as OpenAI writes it if the bytes are not whole
    characters. Tokens that are different parts of characters keep different names."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _num_chars(raw: bytes) -> int:
    """Number of characters that begin in these bytes: UTF-8's continuation bytes do not count."""
    return sum(byte & 0xC0 != 0x80 for byte in raw)
