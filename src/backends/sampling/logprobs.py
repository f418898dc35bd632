"""Log-probabilities of tokens, from the model's raw logits.

Shape suffixes: l rows with log-probabilities, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...core.plan import TokenLogprobs

_ROWS_AT_ONCE = 64
"""Rows whose log-probabilities are in memory together: 40 MB with 150,000 tokens."""


class Scores(NamedTuple):
    """The log-probabilities of given tokens, in the order of their rows."""

    logprobs: list[TokenLogprobs]
    is_finite: list[bool]
    """False if the row's logits held NaN or infinity: then its entry is meaningless."""


def score(logits_lv: torch.Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> Scores:
    """The log-probability of one token per row, and of the row's `counts` most likely ones."""
    scores = Scores([], [])
    token_ids_l = torch.tensor(token_ids, dtype=torch.int64).to(logits_lv.device)
    for start in range(0, len(token_ids), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        scores.is_finite.extend(logits_lv[rows].sum(dim=1).isfinite().tolist())
        logprobs_lv = logits_lv[rows].log_softmax(dim=1)
        scores.logprobs.extend(describe(logprobs_lv, token_ids_l[rows], counts[rows]))
    return scores


def logprobs_of(
    logprobs_v: torch.Tensor, token_ids: Sequence[int]
) -> tuple[tuple[int, float], ...]:
    """The log-probabilities of some tokens, the most likely one first."""
    found = zip(token_ids, logprobs_v[list(token_ids)].tolist(), strict=True)
    return tuple(sorted(found, key=lambda one: -one[1]))


def describe(
    logprobs_lv: torch.Tensor, token_ids_l: torch.Tensor, counts: Sequence[int]
) -> list[TokenLogprobs]:
    """The log-probability and rank of one token per row, and the row's `counts` most likely ones.

    `token_ids_l`: int64.
    """
    chosen_l1 = token_ids_l.unsqueeze(1)
    logprob_l1 = logprobs_lv.gather(1, chosen_l1)
    rank_l = (logprobs_lv > logprob_l1).sum(dim=1) + 1
    top = logprobs_lv.topk(min(max(counts), logprobs_lv.shape[1]), dim=1)
    found = zip(
        counts,
        token_ids_l.tolist(),
        logprob_l1.squeeze(1).tolist(),
        rank_l.tolist(),
        top.indices.tolist(),
        top.values.tolist(),
        strict=True,
    )
    return [
        TokenLogprobs(
            token_id=token_id,
            logprob=logprob,
            rank=rank,
            top=tuple(zip(ids[:count], values[:count], strict=True)),
        )
        for count, token_id, logprob, rank, ids, values in found
    ]
