"""Chooses the draft length of each request that promises the highest speed of the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import log, log2

from ....plugin import DraftedStep, RequestView, SpeculationLimits
from .acceptance import Acceptance
from .costs import CostLine, StepCosts
from .phases import Phase, Phases, TrialBudget

LEVELS = 16
"""Number of steps to which probabilities are rounded."""


class _Batch:
    """Costs and phases of steps with about the same number of requests."""

    def __init__(self) -> None:
        self.costs = StepCosts()
        self.phases = Phases(self.costs)


class AdaptiveDraftLength:
    """A policy that follows the measured gain and cost of drafts. It reads no clock itself."""

    def __init__(self) -> None:
        self._acceptance = Acceptance()
        self._batches: dict[int, _Batch] = {}
        """By bucket of the number of requests."""
        self._budget = TrialBudget()
        self._seen: set[str] = set()
        """Requests for which a length was chosen."""
        self._needs_lookahead = False
        self._step = 0

    def choose(self, requests: Sequence[RequestView], limits: SpeculationLimits) -> Sequence[int]:
        self._step += 1
        self._needs_lookahead = limits.needs_lookahead
        if not requests:
            return ()
        engine_ids = [request.engine_id for request in requests]
        has_new = not self._seen.issuperset(engine_ids)
        phases = self._batch(len(requests)).phases
        phases.advance(self._step, self._budget, has_new=has_new)
        if not phases.asks:
            return [0] * len(requests)
        self._seen.update(engine_ids)
        levels = [round(LEVELS * self._acceptance.of(engine_id)) for engine_id in engine_ids]
        line = self._batch(len(requests)).costs.line(self._step)
        phases.speedup, lengths = best_lengths(
            Counter(levels), self._acceptance.found, line, limits.num_speculative_tokens
        )
        shortest = int(phases.phase is Phase.TRIAL)
        return [max(shortest, lengths[level]) for level in levels]

    def observe(self, step: DraftedStep) -> None:
        for outcome in step.outcomes:
            if outcome.num_draft_tokens:
                self._acceptance.add_draft(outcome)
            # A draft model that has no budget to compute tokens that it missed cannot answer yet.
            can_answer = not self._needs_lookahead or step.draft_token_budget
            if outcome.num_proposed_tokens or (outcome.max_draft_tokens and can_answer):
                self._acceptance.add_answer(outcome)
        if step.is_decode and step.seconds > 0:
            self._observe_cost(step)

    def forget(self, engine_id: str) -> None:
        self._seen.discard(engine_id)
        self._acceptance.forget(engine_id)

    def _observe_cost(self, step: DraftedStep) -> None:
        batch = self._batch(step.num_requests)
        num_drafts = step.num_tokens - step.num_requests
        if num_drafts or step.proposal_seconds or step.outcomes:
            cost = batch.costs.add(num_drafts, step.seconds, self._step)
            if batch.phases.phase in (Phase.OFF, Phase.TRIAL):
                num_accepted = sum(outcome.num_accepted_tokens for outcome in step.outcomes)
                self._budget.spend(cost - 1 - num_accepted / step.num_requests)
        elif not step.was_held_back:
            batch.costs.add_plain(step.seconds, self._step)

    def _batch(self, num_requests: int) -> _Batch:
        """The batch of this number of requests. There are two per power of two, because steps with
        similar numbers of requests cost about the same."""
        return self._batches.setdefault(round(2 * log2(num_requests)), _Batch())


def best_lengths(
    levels: Mapping[int, int], found: float, costs: CostLine, longest: int
) -> tuple[float, Mapping[int, int]]:
    """The highest estimated speedup, and the draft length for each level of acceptance.

    `levels` has the number of requests of each level. `found` is the fraction of requests for which
    a draft is found. Tokens are drafted while their probability of acceptance is at least a
    threshold, and the threshold with the highest speedup is chosen. A step has at most twice
    the number of draft tokens that was measured before.
    """
    num_requests = sum(levels.values())
    most = 2 * max(costs.end, num_requests)
    best: tuple[float, Mapping[int, int]] = 0.0, dict.fromkeys(levels, 0)
    for threshold in range(1, LEVELS):
        lengths = {level: _length(level, threshold, longest) for level in levels}
        num_asked = sum(count for level, count in levels.items() if lengths[level])
        num_drafts = sum(count * lengths[level] for level, count in levels.items())
        none = (1 - found) ** num_asked
        if none == 1:
            continue
        num_found = found * num_drafts / (1 - none)
        if num_found > most:
            continue
        num_accepted = found * sum(
            count * _num_accepted(level / LEVELS, lengths[level]) for level, count in levels.items()
        )
        cost = none * costs.cost(0) + (1 - none) * costs.cost(num_found)
        best = max(best, ((1 + num_accepted / num_requests) / cost, lengths), key=lambda b: b[0])
    return best


def _length(level: int, threshold: int, longest: int) -> int:
    """Number of draft tokens whose probability of acceptance is at least the threshold."""
    if level >= LEVELS:
        return longest
    if level < threshold:
        return 0
    return min(longest, int(log(threshold / LEVELS) / log(level / LEVELS) + 1e-9))


def _num_accepted(acceptance: float, length: int) -> float:
    """Average number of accepted tokens of a draft of this length."""
    if acceptance == 1:
        return length
    return acceptance * (1 - acceptance**length) / (1 - acceptance)
