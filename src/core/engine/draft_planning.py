"""Adds drafts to a decided step: verifies the drafts that the executor holds, asks for new ones.

Both use only what the scheduler left: budget, and blocks beyond the watermark. The most senior
request comes first. So drafts never delay other tokens, and never preempt a request.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..contract.providers.draft_length import DraftedStep, DraftLengthPolicy, DraftOutcome
from ..contract.providers.speculation import SpeculationLimits
from ..plan import Grant, StepPlan, StepResult
from .request import Request
from .statistics import StepTally
from .step import PendingGrant, Step


class DraftPlanner:
    """Adds to each step the number of drafts that the draft length policy chooses."""

    def __init__(
        self, policy: DraftLengthPolicy, limits: SpeculationLimits, max_model_len: int
    ) -> None:
        """`policy` must not raise, and its lengths must be within the limits."""
        self._policy = policy
        self._limits = limits
        self._max_model_len = max_model_len
        self._outcomes: list[DraftOutcome] = []
        """Outcomes of the step that is being committed."""
        self._ended: list[str] = []
        """Requests that the policy must forget after their last outcomes are observed."""

    def add_drafts(self, step: Step) -> None:
        """Add drafts to a step. Call it once per step that becomes a plan, after its last grant."""
        grants = [
            pending
            for pending in step.grants.values()
            if pending.samples and pending.request.allows_drafts
        ]
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
        """Record how many drafts of a grant were accepted, and how many were proposed after it."""
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
        """Report a committed step to the policy.

        `seconds` is the time since the end of the previous step. `was_held_back` says that without
        drafts the step could have been planned earlier.
        """
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
        """Let the policy forget a request that has ended.

        This happens after the commit in progress, if any, which may have its last outcome.
        """
        self._ended.append(request.engine_id)

    def _forget_ended(self) -> None:
        ended, self._ended = self._ended, []
        for engine_id in ended:
            self._policy.forget(engine_id)

    def _room(self, pending: PendingGrant) -> int:
        """Number of draft tokens that could still become output if all of this step's are accepted.

        The 2 stands for the model's own tokens: one after this step's drafts, one after the next.
        """
        request = pending.request
        most = min(request.num_prompt_tokens + request.max_tokens, self._max_model_len)
        return most - pending.end - 2


def _is_decode(grant: Grant) -> bool:
    return grant.samples and grant.num_tokens == 1 + grant.num_draft_tokens


def by_rank(grants: Iterable[PendingGrant]) -> list[PendingGrant]:
    """The grants, most senior request first."""
    return sorted(grants, key=lambda pending: pending.request.rank)


def _num_ready(pending: PendingGrant) -> int:
    """Number of drafts that continue the known tokens; 0 while an open plan computes more."""
    request = pending.request
    if pending.is_start or request.num_inflight_tokens:
        return 0
    return request.num_proposed_tokens
