"""Asks the speculator for drafts at the end of a step, and keeps them for the next plan.

Shape suffixes: r sampled rows, e hidden size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from ...core.contract.providers.speculation import Draft, ProposalBatch, ProposalRequest
from ...core.log import get_logger
from ...core.plan import Grant, StepPlan
from ..state.draft_probs import DraftProbs
from ..state.request_state import RequestState
from .outcome import Outcome

log = get_logger("speculation")

Propose = Callable[[ProposalBatch], Sequence[Draft]]
"""The hook that proposes one draft per request. It does not raise, and its drafts are checked: ids
within the vocabulary, at most the requested length."""


class Proposer:
    """Calls the hook for one runner. Starts and ends of requests are kept until the next call."""

    def __init__(self, propose: Propose, vocab_size: int) -> None:
        self._propose = propose
        self._vocab_size = vocab_size
        self._reported: set[str] = set()
        """Requests whose start was reported to the speculator, and whose end was not."""
        self._started: dict[str, None] = {}
        self._ended: dict[str, None] = {}
        self.seconds = 0.0
        """Duration of the last `propose`."""

    def follow(self, plan: StepPlan) -> None:
        """Note the requests that ended or started."""
        for engine_id in plan.ended:
            self._end(engine_id)
        for start in plan.starts:
            self._end(start.engine_id)
            self._started[start.engine_id] = None

    def propose(
        self,
        plan: StepPlan,
        sampled: Sequence[tuple[Grant, Outcome]],
        hidden_re: torch.Tensor | None,
    ) -> Sequence[RequestState]:
        """Ask for drafts for the grants that may have some; returns the states that got a draft.

        `hidden_re` holds the hidden states of the step's sampled rows; None if they are not needed.
        """
        begin = time.perf_counter()
        asked = [(grant, outcome) for grant, outcome in sampled if grant.max_draft_tokens]
        got = self._ask(plan, asked, hidden_re) if asked else []
        self.seconds = time.perf_counter() - begin
        return got

    def _ask(
        self,
        plan: StepPlan,
        asked: Sequence[tuple[Grant, Outcome]],
        hidden_re: torch.Tensor | None,
    ) -> Sequence[RequestState]:
        batch = ProposalBatch(
            requests=[_describe(grant, outcome, hidden_re) for grant, outcome in asked],
            ended=tuple(self._ended),
            started=tuple(self._started),
            token_budget=plan.draft_token_budget,
        )
        self._reported |= self._started.keys()
        self._started, self._ended = {}, {}
        got = []
        for draft, (_, outcome) in zip(self._propose(batch), asked, strict=True):
            state = outcome.state
            if draft.token_ids and self._is_usable(draft, state):
                probs = draft.probs
                probs_kv = probs.probs_kv if isinstance(probs, DraftProbs) else None
                state.propose(draft.token_ids, probs_kv)
                got.append(state)
        return got

    def _is_usable(self, draft: Draft, state: RequestState) -> bool:
        """Check the draft's probabilities; the hook's own checks do not know their type."""
        if draft.probs is None:
            return True
        found, shape = draft.probs, (len(draft.token_ids), self._vocab_size)
        is_usable = (
            isinstance(found, DraftProbs)
            and found.probs_kv.shape == shape
            and found.probs_kv.dtype is torch.float32
        )
        if not is_usable:
            log.warning(
                "draft_dropped",
                engine_id=state.start.engine_id,
                reason=f"probs must be a DraftProbs whose probs_kv is float32 {list(shape)}",
            )
        return is_usable

    def _end(self, engine_id: str) -> None:
        self._started.pop(engine_id, None)
        if engine_id in self._reported:
            self._reported.remove(engine_id)
            self._ended[engine_id] = None


def _describe(grant: Grant, outcome: Outcome, hidden_re: torch.Tensor | None) -> ProposalRequest:
    state, begin = outcome.state, outcome.first_row
    end = begin + len(outcome.token_ids)  # leaves out the rows of rejected drafts
    return ProposalRequest(
        engine_id=grant.engine_id,
        token_ids=state.token_ids,
        num_prompt_tokens=state.start.num_prompt_tokens,
        sampling_params=state.start.sampling_params,
        max_draft_tokens=grant.max_draft_tokens,
        hidden_states=None if hidden_re is None else hidden_re[begin:end],
    )
