"""Ends a reasoning that has used up its tokens: the tokens of its end mark are forced.

The rule is that of vLLM's `thinking_token_budget`.

Shape suffixes: g rows of one call, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ....core.contract.providers.logits_processor import THINKING_BUDGET
from .base import ProcessedRow, ProcessorSpec

MAX_MARK = 64
"""Tokens of a mark."""
_MAX_BEFORE = 4
"""Tokens, of whitespace, that may come before the mark at the beginning of an answer."""


class _Budget(NamedTuple):
    max_tokens: int
    start: list[int]
    end: list[int]
    is_open: bool


class ThinkingBudget:
    """Forces the token ids `end` once `max_tokens` tokens of reasoning were generated.

    The reasoning begins after the ids `start` at the beginning of the answer, or with the answer if
    it `is_open`, because the prompt ends with them. Each row costs time in proportion to the answer
    (20 µs per 10,000 tokens).
    """

    arguments = (THINKING_BUDGET,)
    example: Mapping[str, Any] = {
        THINKING_BUDGET: {"max_tokens": 2, "start": [1], "end": [2, 3], "is_open": True}
    }
    allows_drafts = True
    always = False

    @classmethod
    def reasons_against(cls, spec: ProcessorSpec) -> list[str]:
        return []

    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        _read(arguments)

    def __init__(self, spec: ProcessorSpec) -> None:
        self._spec = spec

    def begin(self, arguments: Mapping[str, Any]) -> _Budget:
        budget = _read(arguments)
        if max(budget.end) >= self._spec.vocab_size:
            raise ValueError(f"{THINKING_BUDGET} has an `end` that is not in the vocabulary")
        return budget

    def apply(self, logits_gv: torch.Tensor, rows: Sequence[ProcessedRow]) -> None:
        forced = ((index, _forced(row)) for index, row in enumerate(rows))
        places = [(index, token_id) for index, token_id in forced if token_id is not None]
        if places:
            rows_n, token_ids_n = torch.tensor(places, device=self._spec.device).unbind(dim=1)
            logits_gv[rows_n] = -torch.inf
            logits_gv[rows_n, token_ids_n] = 0.0


def _read(arguments: Mapping[str, Any]) -> _Budget:
    given = arguments[THINKING_BUDGET]
    if not isinstance(given, Mapping) or given.keys() != set(_Budget._fields):
        raise ValueError(f"{THINKING_BUDGET} must be an object with {', '.join(_Budget._fields)}")
    if type(given["max_tokens"]) is not int or given["max_tokens"] < 0:
        raise ValueError(f"{THINKING_BUDGET}.max_tokens must be an integer, 0 or more")
    if type(given["is_open"]) is not bool:
        raise ValueError(f"{THINKING_BUDGET}.is_open must be true or false")
    for name in ("start", "end"):
        ids = given[name]
        is_list = isinstance(ids, Sequence) and not isinstance(ids, str)
        if not is_list or not 1 <= len(ids) <= MAX_MARK:
            raise ValueError(f"{THINKING_BUDGET}.{name} must be a list of 1 to {MAX_MARK} ids")
        if any(type(one) is not int or one < 0 for one in ids):
            raise ValueError(f"{THINKING_BUDGET}.{name} has an item that is not a token id")
    start, end = list(given["start"]), list(given["end"])
    return _Budget(given["max_tokens"], start, end, given["is_open"])


def _forced(row: ProcessedRow) -> int | None:
    """The only token that may come next; None: any."""
    budget: _Budget = row.state
    answer = list(row.token_ids[row.num_prompt_tokens :])
    begin = 0
    if not budget.is_open:
        place = _find(answer[: _MAX_BEFORE + len(budget.start)], budget.start, 0)
        if place is None:
            return None
        begin = place + len(budget.start)
    is_spent = len(answer) - begin >= budget.max_tokens
    if not is_spent or _find(answer, budget.end, begin) is not None:
        return None
    return budget.end[_num_written(answer[begin:], budget.end)]


def _find(tokens: list[int], wanted: list[int], begin: int) -> int | None:
    """The first place of the wanted tokens, from `begin` on."""
    while True:
        try:
            begin = tokens.index(wanted[0], begin)
        except ValueError:
            return None
        if tokens[begin : begin + len(wanted)] == wanted:
            return begin
        begin += 1


def _num_written(tokens: list[int], mark: list[int]) -> int:
    """The number of the mark's first tokens that `tokens` already ends with."""
    lengths = range(min(len(tokens), len(mark) - 1), 0, -1)
    return next((n for n in lengths if tokens[-n:] == mark[:n]), 0)
