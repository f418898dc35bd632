"""Proposers that know what comes, and say it, or something else, as the script has it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from tokenmill.core.contract.providers.speculation import Draft, ProposalBatch, ProposalRequest


class ScriptedProposer:
    """Proposes each request's true continuation, with errors at random."""

    def __init__(
        self,
        truths: Mapping[str, Sequence[int]],
        vocab_size: int,
        *,
        accuracy: float = 1.0,
        is_shy: bool = False,
        seed: int = 0,
    ) -> None:
        """`truths`: all tokens, with prompts. `accuracy`: the probability that a token is right;
        a shy one proposes between none and all that it is asked for."""
        self._truths = truths
        self._vocab_size = vocab_size
        self._accuracy = accuracy
        self._is_shy = is_shy
        self._rng = random.Random(seed)
        self.batches: list[ProposalBatch] = []

    def __call__(self, batch: ProposalBatch) -> Sequence[Draft]:
        self.batches.append(batch)
        return [self._draft(request) for request in batch.requests]

    def _draft(self, request: ProposalRequest) -> Draft:
        rng, most = self._rng, request.max_draft_tokens
        begin = len(request.token_ids)
        right = self._truths[request.engine_id][begin : begin + most]
        told = [
            token_id if rng.random() < self._accuracy else (token_id + 1) % self._vocab_size
            for token_id in right
        ]
        return Draft(token_ids=told[: rng.randint(0, most)] if self._is_shy else told)
