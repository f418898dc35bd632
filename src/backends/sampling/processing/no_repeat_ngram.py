"""Forbids the tokens that would repeat an n-gram of the answer.

It takes the arguments of vLLM's processor for DeepSeek-OCR. Its rule is transformers'
`no_repeat_ngram_size`, applied to the last tokens of the answer.

Shape suffixes: g rows of one call, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .base import ProcessedRow, ProcessorSpec

MAX_WINDOW = 4096
"""In tokens. Each step compares the whole window in Python, which takes 0.1 ms per 1,000 tokens."""


class _Wish(NamedTuple):
    size: int
    window: int
    exempt: frozenset[int]


class NoRepeatNGram:
    """Forbids the tokens that would repeat `ngram_size` tokens of the last `window_size` ones.

    `whitelist_token_ids` are never forbidden.
    """

    arguments = ("ngram_size", "window_size", "whitelist_token_ids")
    example: Mapping[str, Any] = {"ngram_size": 4, "window_size": 100}
    allows_drafts = True
    always = False

    @classmethod
    def reasons_against(cls, spec: ProcessorSpec) -> list[str]:
        return []

    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        wish = _read(arguments)
        if not _is_count(wish.size, MAX_WINDOW):
            raise ValueError(f"ngram_size must be an integer from 1 to {MAX_WINDOW}")
        if not _is_count(wish.window, MAX_WINDOW):
            raise ValueError(f"window_size must be an integer from 1 to {MAX_WINDOW}")
        if not all(type(token_id) is int for token_id in wish.exempt):
            raise ValueError("whitelist_token_ids must be a list of token ids")

    def __init__(self, spec: ProcessorSpec) -> None:
        self._device = spec.device

    def begin(self, arguments: Mapping[str, Any]) -> _Wish:
        return _read(arguments)

    def apply(self, logits_gv: torch.Tensor, rows: Sequence[ProcessedRow]) -> None:
        places = [
            (index, token_id)
            for index, row in enumerate(rows)
            for token_id in _repeated(row) - row.state.exempt
        ]
        if places:
            rows_n, token_ids_n = torch.tensor(places, device=self._device).unbind(dim=1)
            logits_gv[rows_n, token_ids_n] = -torch.inf


def _read(arguments: Mapping[str, Any]) -> _Wish:
    exempt = arguments.get("whitelist_token_ids", ())
    if not isinstance(exempt, Sequence) or isinstance(exempt, str):
        raise ValueError("whitelist_token_ids must be a list of token ids")
    try:
        ids = frozenset(exempt)
    except TypeError:
        raise ValueError("whitelist_token_ids must be a list of token ids") from None
    return _Wish(arguments.get("ngram_size", 0), arguments.get("window_size", 100), ids)


def _is_count(value: object, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _repeated(row: ProcessedRow) -> set[int]:
    """The tokens that would complete a repetition: each of them already stands in the window after
    the same size - 1 tokens that the answer ends with."""
    wish: _Wish = row.state
    begin = max(row.num_prompt_tokens, len(row.token_ids) - wish.window)
    seen = list(row.token_ids[begin:])
    length = wish.size - 1
    last = seen[len(seen) - length :] if length else []
    starts = range(len(seen) - length)
    return {seen[i + length] for i in starts if seen[i : i + length] == last}
