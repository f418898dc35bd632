"""Calls a real speculator for the simulated executor, as a model's runner does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...core.contract.providers.speculation import Draft, ProposalBatch, ProposalRequest
from ...core.plan import Grant, StepPlan
from ...core.requests.sampling_params import SamplingParams

Propose = Callable[[ProposalBatch], Sequence[Draft]]


class SimulatedAsking:
    """Calls `propose`. Requests' starts and ends are collected until the next call."""

    def __init__(self, propose: Propose) -> None:
        self._propose = propose
        self._num_prompt_tokens: dict[str, int] = {}
        self._ended: list[str] = []
        self._started: list[str] = []

    def follow(self, plan: StepPlan) -> None:
        """Note the requests that ended or started."""
        for engine_id in plan.ended:
            self._num_prompt_tokens.pop(engine_id, None)
            self._ended.append(engine_id)
            if engine_id in self._started:
                self._started.remove(engine_id)
        for start in plan.starts:
            self._num_prompt_tokens[start.engine_id] = start.num_prompt_tokens
            self._started.append(start.engine_id)

    def drafts(
        self, pairs: Iterable[tuple[Grant, Sequence[int]]], token_budget: int
    ) -> Mapping[str, tuple[int, ...]]:
        """Drafts by `engine_id`. `pairs` are grants, each with all known tokens of its request."""
        requests = [self._describe(g, ids) for g, ids in pairs if g.max_draft_tokens]
        if not requests:
            return {}
        batch = ProposalBatch(
            requests=requests,
            ended=tuple(self._ended),
            started=tuple(self._started),
            token_budget=token_budget,
        )
        self._ended, self._started = [], []
        pairs_of = zip(requests, self._propose(batch), strict=True)
        return {request.engine_id: tuple(draft.token_ids) for request, draft in pairs_of}

    def _describe(self, grant: Grant, token_ids: Sequence[int]) -> ProposalRequest:
        return ProposalRequest(
            engine_id=grant.engine_id,
            token_ids=token_ids,
            num_prompt_tokens=self._num_prompt_tokens[grant.engine_id],
            sampling_params=SamplingParams(),
            max_draft_tokens=grant.max_draft_tokens,
        )
