"""Computes the log-probabilities of prompt tokens from a step's logits.

Shape suffixes: s rows that score a prompt token, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...core.plan import Grant, TokenLogprobs
from ..sampling.logprobs import score
from ..state.request_state import RequestState

PromptLogprobs = tuple[TokenLogprobs, ...] | None
"""One entry per scored token; None if the logits of any were not finite."""


def score_prompts(
    logits_sv: torch.Tensor, scored: Sequence[tuple[Grant, RequestState]]
) -> list[PromptLogprobs]:
    """Score the prompt tokens of some grants, whose rows follow one another."""
    token_ids: list[int] = []
    counts: list[int] = []
    for grant, state in scored:
        token_ids += state.scored_token_ids(grant)
        counts += [state.start.sampling_params.prompt_logprobs or 0] * grant.num_scored_tokens
    scores = score(logits_sv, token_ids, counts)
    found: list[PromptLogprobs] = []
    begin = 0
    for grant, _ in scored:
        rows = slice(begin, begin + grant.num_scored_tokens)
        found.append(tuple(scores.logprobs[rows]) if all(scores.is_finite[rows]) else None)
        begin = rows.stop
    return found
