"""Log-probabilities in the shape of /v1/completions, and vLLM's shape for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ...core.interfaces import Tokenizer
from ...core.plan import TokenLogprobs
from ..chat.logprobs import LEAST, TokenNames
from .responses import (
    CompletionLogprobs,
    PromptTokenLogprob,
)

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


def _num_chars(raw: bytes) -> int:
    """Number of characters that begin in these bytes: UTF-8's continuation bytes do not count."""
    return sum(byte & 0xC0 != 0x80 for byte in raw)
