"""Measures how often drafts are found, and how often their tokens are accepted."""

from __future__ import annotations

from dataclasses import dataclass

from ....plugin import DraftOutcome

REQUEST_MEMORY, ENGINE_MEMORY = 20, 64
"""Number of drafts or answers of the speculator in the mean of one request, and of all requests."""
PRIOR_TOKENS = 8.0
"""Weight of the assumed acceptance, in draft tokens. After this many tokens, the assumption and the
measurement weigh the same."""
FIRST_ACCEPTANCE = 0.6
"""Probability of acceptance that is assumed before the first draft."""


@dataclass(slots=True)
class _Share:
    """A fraction of successes, in which older trials count less."""

    hits: float = 0.0
    trials: float = 0.0

    def add(self, hits: int, trials: int, memory: int) -> None:
        keep = 1 - 1 / memory
        self.hits = keep * self.hits + hits
        self.trials = keep * self.trials + trials


class Acceptance:
    """Means over the last drafts of each request, and over the last drafts of all requests."""

    def __init__(self) -> None:
        self._all = _Share(FIRST_ACCEPTANCE * PRIOR_TOKENS, PRIOR_TOKENS)
        self._answers = _Share(PRIOR_TOKENS, PRIOR_TOKENS)
        self._requests: dict[str, _Share] = {}

    @property
    def found(self) -> float:
        """Fraction of the requests asked for drafts that got one."""
        return self._answers.hits / self._answers.trials

    def of(self, engine_id: str) -> float:
        """Probability that a draft token of this request is accepted once those before it are."""
        mean = self._all.hits / self._all.trials
        own = self._requests.get(engine_id)
        if own is None:
            return mean
        return (own.hits + PRIOR_TOKENS * mean) / (own.trials + PRIOR_TOKENS)

    def add_draft(self, outcome: DraftOutcome) -> None:
        """Add a verified draft. Tokens after the first rejected one are not counted as trials."""
        hits = outcome.num_accepted_tokens
        trials = min(hits + 1, outcome.num_draft_tokens)
        self._all.add(hits, trials, ENGINE_MEMORY)
        self._requests.setdefault(outcome.engine_id, _Share()).add(hits, trials, REQUEST_MEMORY)

    def add_answer(self, outcome: DraftOutcome) -> None:
        """Add an answer of the speculator: whether it found a draft for a request."""
        self._answers.add(outcome.num_proposed_tokens > 0, 1, ENGINE_MEMORY)

    def forget(self, engine_id: str) -> None:
        """Drop the request's own mean."""
        self._requests.pop(engine_id, None)
