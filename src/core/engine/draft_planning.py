"""Drafts in a step that is decided: verify those that the executor holds, and ask for new ones.

Both take only what the policy left: budget, and blocks beyond the watermark, the most senior request
first. So drafts never delay a token that is certain, and never preempt.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..contract.draft_length import DraftedStep, DraftLengthPolicy, DraftOutcome
from ..contract.speculation import SpeculationLimits
from ..plan import Grant, StepPlan, StepResult
from .request import Request
from .statistics import StepTally
from .step import PendingGrant, Step


class DraftPlanner:
    """Adds drafts to steps, as many as they are worth."""

    def __init__(
        self, policy: DraftLengthPolicy, limits: SpeculationLimits, max_model_len: int
    ) -> None:
        """`policy` never raises, and its lengths keep the limits."""
        self._policy = policy
        self._limits = limits
        self._max_model_len = max_model_len
        self._outcomes: list[DraftOutcome] = []
        """Of the step that is being committed."""
        self._ended: list[str] = []
        """Requests that the policy has to forget, once their last outcomes were observed."""

    def add_drafts(self, step: Step) -> None:
        """Called once for each step that will be a plan, after its last grant."""
        grants = [pending for pending in step.grants.values() if pending.samples]
        for pending in by_rank(p for p in grants if _num_ready(p)):
            step.add_drafts(pending, _num_ready(pending))
        self._forget_ended()
        lengths = self._policy.choose([pending.request.view for pending in grants], self._limits)
        if any(lengths):
            longest = dict(zip(grants, lengths, strict=True))
            for pending in by_rank(grants):
                self._ask(step, pending, longest[pending])

    def _ask(self, step: Step, pending: PendingGrant, longest: int) -> None:
        num_tokens = min(longest, self._room(pending))
        if num_tokens > 0:
            step.ask_for_drafts(pending, num_tokens, lookahead=self._limits.needs_lookahead)

    def take_in(
        self, request: Request, grant: Grant, result: StepResult, row: int, tally: StepTally
    ) -> None:
        """Note how the drafts of a grant did, and what was proposed after it."""
        proposed = result.num_proposed_tokens
        request.num_proposed_tokens = 0 if proposed is None else proposed[row]
        assert request.num_proposed_tokens <= grant.max_draft_tokens, "more drafts than asked for"
        num_accepted = 0
        if grant.num_draft_tokens:
            num_accepted = len(result.token_ids[row]) - 1
            tally.count_draft(request, grant.num_draft_tokens, num_accepted)
        if grant.speculates:
            outcome = DraftOutcome(
                engine_id=request.engine_id,
                num_draft_tokens=grant.num_draft_tokens,
                num_accepted_tokens=num_accepted,
                max_draft_tokens=grant.max_draft_tokens,
                num_proposed_tokens=request.num_proposed_tokens,
            )
            self._outcomes.append(outcome)

    def observe(
        self, plan: StepPlan, result: StepResult, seconds: float, *, was_held_back: bool
    ) -> None:
        """Show the policy a committed step that ended `seconds` after the one before it.
        `was_held_back`: it could have been planned earlier, were it not for drafts."""
        outcomes, self._outcomes = self._outcomes, []
        num_requests, num_tokens = len(plan.grants), plan.num_tokens
        step = DraftedStep(
            num_requests=num_requests,
            num_tokens=num_tokens,
            is_decode=num_tokens == num_requests or all(map(_is_decode, plan.grants)),
            seconds=seconds,
            proposal_seconds=result.proposal_seconds,
            was_held_back=was_held_back,
            draft_token_budget=plan.draft_token_budget,
            outcomes=outcomes,
        )
        self._policy.observe(step)
        self._forget_ended()

    def end(self, request: Request) -> None:
        """A request has ended. The policy forgets it after the commit in progress, if there is one:
        its last outcome may be part of that."""
        self._ended.append(request.engine_id)

    def _forget_ended(self) -> None:
        ended, self._ended = self._ended, []
        for engine_id in ended:
            self._policy.forget(engine_id)

    def _room(self, pending: PendingGrant) -> int:
        """Drafts that could still become output if this step's are all accepted: after them comes
        one token of the model's own."""
        request = pending.request
        most = min(request.num_prompt_tokens + request.max_tokens, self._max_model_len)
        return most - pending.end - 2


def _is_decode(grant: Grant) -> bool:
    return grant.samples and grant.num_tokens == 1 + grant.num_draft_tokens


def by_rank(grants: Iterable[PendingGrant]) -> list[PendingGrant]:
    """The most senior request first."""
    return sorted(grants, key=lambda pending: pending.request.rank)


def _num_ready(pending: PendingGrant) -> int:
    """Drafts that continue what is known: none while an open plan samples more."""
    request = pending.request
    if pending.is_start or request.num_inflight_tokens:
        return 0
    return request.num_proposed_tokens
