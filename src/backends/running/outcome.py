"""From sampled rows to the tokens of each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...core.plan import TokenLogprobs
from ..sampling.sampler import Sampled
from ..sampling.verification import count_accepted
from ..state.request_state import RequestState

NOT_FINITE = (
    "the model's output for this request is not a number (NaN or infinity): the request ends"
)


class Outcome(NamedTuple):
    """The result of a step for one sampled request."""

    # A tuple, because it is cheap to make: there is one per request and step.
    state: RequestState
    first_row: int
    """Index of the first of its sampled rows."""
    token_ids: Sequence[int]
    """The accepted drafts and one more token."""
    logprobs: tuple[TokenLogprobs, ...]
    """One per token; empty if the request asked for none."""
    error: str | None
    """Why one of these tokens could not be sampled, or why the request's grammar failed; then all
    of them are meaningless. Rows after a rejected draft do not count: without drafts they would not
    exist."""


def read_outcomes(states: Sequence[RequestState], sampled: Sampled) -> list[Outcome]:
    """Split the sampled rows among the states: each has one row per draft, and one more."""
    token_ids, logprobs, is_finite = sampled.token_ids, sampled.logprobs, sampled.is_finite
    failures = sampled.failures
    outcomes, begin = [], 0
    for state in states:
        drafts, end = state.draft_token_ids, begin + 1
        is_fine = is_finite[begin]
        if drafts:
            end += count_accepted(drafts, token_ids[begin : begin + len(drafts)])
            is_fine = all(is_finite[begin:end])
        entries = tuple(logprobs[row] for row in range(begin, end)) if begin in logprobs else ()
        error = None if is_fine else NOT_FINITE
        if failures:
            error = next((failures[row] for row in range(begin, end) if row in failures), error)
        if state.matcher is not None:
            error = error or state.matcher.error
        outcomes.append(Outcome(state, begin, token_ids[begin:end], entries, error))
        begin += 1 + len(drafts)
    return outcomes
