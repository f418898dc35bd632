"""Computes log-probabilities or sums of hidden states of a step's prompt tokens.

Shape suffixes: r rows with logits, s rows of prompt tokens, v vocabulary, e hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...core.plan import Grant, TokenLogprobs
from ..sampling.logprobs import score
from ..state.request_state import RequestState

Scored = tuple[Grant, RequestState]


class PromptScore(NamedTuple):
    """The result of a step for one request's prompt tokens: one of the two fields."""

    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per scored token."""
    pooled: tuple[float, ...] = ()
    """The sum of the tokens' hidden states."""


Score = PromptScore | None
"""None if one of the numbers is not finite."""


def pools_any(scored: Sequence[Scored]) -> bool:
    """Whether one of these requests needs hidden states."""
    return any(_pools(state) for _, state in scored)


def score_prompts(
    logits_rv: torch.Tensor,
    hidden_re: torch.Tensor | None,
    first_row: int,
    scored: Sequence[Scored],
) -> list[Score]:
    """Score the prompt tokens of some grants, whose rows follow one another from `first_row` on."""
    found: list[Score] = []
    begin = first_row
    for grant, state in scored:
        rows = slice(begin, begin + grant.num_scored_tokens)
        if _pools(state):
            assert hidden_re is not None, "hidden states are read if one request pools"
            found.append(_pool(hidden_re[rows]))
        else:
            found.append(_score(logits_rv[rows], grant, state))
        begin = rows.stop
    return found


def _pools(state: RequestState) -> bool:
    return state.start.sampling_params.pooling is not None


def _pool(hidden_se: torch.Tensor) -> Score:
    sum_e = hidden_se.float().sum(dim=0)
    return PromptScore(pooled=tuple(sum_e.tolist())) if sum_e.isfinite().all() else None


def _score(logits_sv: torch.Tensor, grant: Grant, state: RequestState) -> Score:
    count = state.start.sampling_params.prompt_logprobs or 0
    scores = score(logits_sv, state.scored_token_ids(grant), [count] * len(logits_sv))
    if not all(scores.is_finite):
        return None
    return PromptScore(logprobs=tuple(scores.logprobs[row] for row in range(len(logits_sv))))
