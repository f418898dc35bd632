"""Drafts in a step that is decided: verify those that the executor holds, and ask for new ones.

Both take only what the policy left: budget, and blocks beyond the watermark, the most senior request
first. So drafts never delay a token that is certain, and never preempt.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..contract.speculation import SpeculationLimits
from ..draft_length import DraftLengths
from ..plan import Grant, StepPlan, StepResult
from .request import Request
from .statistics import StepTally
from .step import PendingGrant, Step


class DraftPlanner:
    """Adds drafts to steps, as many as they are worth."""

    def __init__(self, limits: SpeculationLimits, max_model_len: int) -> None:
        self.lengths = DraftLengths(limits)
        self._needs_lookahead = limits.needs_lookahead
        self._max_model_len = max_model_len

    def add_drafts(self, step: Step) -> None:
        """Called once for each step that will be a plan, after its last grant."""
        grants = [pending for pending in step.grants.values() if pending.samples]
        for pending in by_rank(p for p in grants if _num_ready(p)):
            step.add_drafts(pending, _num_ready(pending))
        lengths = self.lengths.choose([pending.request for pending in grants])
        if any(lengths):
            longest = dict(zip(grants, lengths, strict=True))
            for pending in by_rank(grants):
                self._ask(step, pending, longest[pending])

    def _ask(self, step: Step, pending: PendingGrant, longest: int) -> None:
        num_tokens = min(longest, self._room(pending))
        if num_tokens > 0:
            step.ask_for_drafts(pending, num_tokens, lookahead=self._needs_lookahead)

    def take_in(
        self, request: Request, grant: Grant, result: StepResult, row: int, tally: StepTally
    ) -> None:
        """Note how the drafts of a grant did, and what was proposed after it."""
        proposed = result.num_proposed_tokens
        request.num_proposed_tokens = 0 if proposed is None else proposed[row]
        assert request.num_proposed_tokens <= grant.max_draft_tokens, "more drafts than asked for"
        if grant.max_draft_tokens:
            self.lengths.observe_answer(request, request.num_proposed_tokens)
        if grant.num_draft_tokens:
            num_accepted = len(result.token_ids[row]) - 1
            tally.count_draft(request, grant.num_draft_tokens, num_accepted)
            self.lengths.observe_draft(request, grant.num_draft_tokens, num_accepted)

    def observe(
        self, plan: StepPlan, result: StepResult, seconds: float, *, was_held_back: bool
    ) -> None:
        """Learn what a step cost that ended `seconds` after the one before it. `was_held_back`: it
        could have been planned earlier, were it not for drafts."""
        self.lengths.observe_step(plan, result, seconds, was_held_back=was_held_back)

    def _room(self, pending: PendingGrant) -> int:
        """Drafts that could still become output if this step's are all accepted: after them comes
        one token of the model's own."""
        request = pending.request
        most = min(request.num_prompt_tokens + request.max_tokens, self._max_model_len)
        return most - pending.end - 2


def by_rank(grants: Iterable[PendingGrant]) -> list[PendingGrant]:
    """The most senior request first."""
    return sorted(grants, key=lambda pending: pending.request.rank)


def _num_ready(pending: PendingGrant) -> int:
    """Drafts that continue what is known: none while an open plan samples more."""
    request = pending.request
    if pending.is_start or request.num_inflight_tokens:
        return 0
    return request.num_proposed_tokens
