"""From sampled rows to the tokens of each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...core.plan import TokenLogprobs
from ..sampling.sampler import Sampled
from ..sampling.verification import count_accepted
from ..state.request_state import RequestState


class Outcome(NamedTuple):
    """What a step made of one sampled request. A tuple, as there is one per request and step."""

    state: RequestState
    first_row: int
    """Of its sampled rows."""
    token_ids: Sequence[int]
    """Accepted drafts and one more."""
    logprobs: tuple[TokenLogprobs, ...]
    """One per token, or none at all."""
    is_finite: bool
    """False where the logits of one of these tokens were not: then they mean nothing. Rows after
    a rejected draft do not count: nobody would have computed them."""


def read_outcomes(states: Sequence[RequestState], sampled: Sampled) -> list[Outcome]:
    """One per state; each has as many rows as drafts, and one more."""
    token_ids, logprobs, is_finite = sampled.token_ids, sampled.logprobs, sampled.is_finite
    outcomes, begin = [], 0
    for state in states:
        drafts, end = state.draft_token_ids, begin + 1
        is_fine = is_finite[begin]
        if drafts:
            end += count_accepted(drafts, token_ids[begin : begin + len(drafts)])
            is_fine = all(is_finite[begin:end])
        entries = tuple(logprobs[row] for row in range(begin, end)) if begin in logprobs else ()
        outcomes.append(Outcome(state, begin, token_ids[begin:end], entries, is_fine))
        begin += 1 + len(drafts)
    return outcomes
