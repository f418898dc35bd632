"""A speculator that guesses nothing, and keeps the hidden states that it is given.

Shape suffixes: t generated tokens, e hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...core.contract.speculation import Draft, ProposalBatch, SpeculationLimits, SpeculationSupport


class HiddenRecorder:
    """Implements Speculation of support.py."""

    limits = SpeculationLimits(num_speculative_tokens=1)
    needs_hidden_states = True

    def __init__(self) -> None:
        self._rows: dict[str, list[torch.Tensor]] = {}
        """By request."""

    def prepare(self, support: SpeculationSupport) -> None:
        """It needs nothing else."""

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        for request in batch.requests:
            hidden_ne = request.hidden_states
            assert isinstance(hidden_ne, torch.Tensor), "the executor gives hidden states"
            self._rows.setdefault(request.engine_id, []).append(hidden_ne.cpu().clone())
        return [Draft()] * len(batch.requests)

    def take(self, request_id: str) -> torch.Tensor | None:
        """[t, e] of one that ended, one row per token, not kept any longer; None if it got no token."""
        rows = self._rows.pop(request_id, None)
        return None if rows is None else torch.cat(rows)
