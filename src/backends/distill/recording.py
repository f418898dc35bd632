"""A speculator that proposes nothing, and records the hidden states that it is given.

Shape suffixes: t generated tokens, e hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...core.contract.providers.speculation import (
    Draft,
    ProposalBatch,
    SpeculationLimits,
    SpeculationSupport,
)


class HiddenRecorder:
    """Records hidden states by request. Implements Speculation of drafting/support.py."""

    limits = SpeculationLimits(num_speculative_tokens=1)
    needs_hidden_states = True

    def __init__(self) -> None:
        self._rows: dict[str, list[torch.Tensor]] = {}

    def prepare(self, support: SpeculationSupport) -> None:
        """Do nothing: a recorder needs no support."""

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        for request in batch.requests:
            hidden_ne = request.hidden_states
            assert isinstance(hidden_ne, torch.Tensor), "the executor gives hidden states"
            self._rows.setdefault(request.engine_id, []).append(hidden_ne.cpu().clone())
        return [Draft()] * len(batch.requests)

    def take(self, engine_id: str) -> torch.Tensor | None:
        """Remove and return a request's states [t, e], one row per token; None without tokens."""
        rows = self._rows.pop(engine_id, None)
        return None if rows is None else torch.cat(rows)
