"""A SpeculationSupport without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....core.contract.providers.speculation import Draft, ProposalBatch
from ....core.interfaces import Tokenizer
from ...toy_tokenizer import ToyTokenizer
from .simulated_hidden import HIDDEN_SIZE


@dataclass(frozen=True, slots=True)
class SimulatedSupport:
    """A SpeculationSupport for an engine of this size. It has a draft model for every path."""

    vocab_size: int
    num_speculative_tokens: int
    hidden_size: int = HIDDEN_SIZE

    @property
    def tokenizer(self) -> Tokenizer:
        return ToyTokenizer(self.vocab_size)

    def load_draft_model(self, path: Path) -> SimulatedDraftModel:
        return SimulatedDraftModel()


class SimulatedDraftModel:
    """A DraftModel that repeats the last token but one: valid drafts without a model."""

    has_kv_cache = True
    needs_hidden_states = False

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        return [
            Draft(token_ids=tuple(request.token_ids[-2:])[:1] * request.max_draft_tokens)
            for request in batch.requests
        ]
