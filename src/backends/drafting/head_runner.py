"""Runs a draft head for a whole batch: one pass per token of the longest draft.

It keeps nothing between steps: each call starts from the hidden states of the current step.

Shape suffixes: r rows, e hidden size, d logits of the head, v the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ...core.contract.providers.speculation import Draft, ProposalBatch
from ..linear.base import Embedding
from ..models.draft_head import DraftHead
from ..state.request_state import RequestState
from .passes import DraftPasses, longest_first


class HeadModel(Protocol):
    """A head that computes all rows of a pass at once."""

    def step(
        self, state_re: torch.Tensor, token_ids_r: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the states [r, e] after one more token, and the logits [r, d], float32, of the
        next tokens. `state_re` is contiguous and may be overwritten."""
        ...


class TorchHead:
    """A HeadModel that calls the head's projections one by one."""

    def __init__(self, head: DraftHead, embedding: Embedding) -> None:
        """`embedding` is the target's token embedding."""
        self._head = head
        self._embedding = embedding

    def step(
        self, state_re: torch.Tensor, token_ids_r: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        state_re = self._head.advance(state_re, self._embedding(token_ids_r))
        return state_re, self._head.logits(state_re)


@dataclass(frozen=True, slots=True)
class _Row:
    """A DraftRow with the hidden state to start from."""

    place: int
    """Index in the batch."""
    state: RequestState
    num_drafts: int
    hidden_e: torch.Tensor
    """The hidden state that the last known token was sampled from."""


class DraftHeadRunner:
    """Proposes drafts with a head. Every method runs on the device thread."""

    def __init__(
        self,
        model: HeadModel,
        passes: DraftPasses,
        states: Mapping[str, RequestState],
    ) -> None:
        """`states` is the live view of the states in the target's runner."""
        self._model = model
        self._passes = passes
        self._states = states

    @torch.inference_mode()
    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        drafts = [Draft()] * len(batch.requests)
        rows = _rows(batch, self._states)
        if not rows:
            return drafts
        state_re = torch.stack([row.hidden_e for row in rows])
        last_r = torch.tensor([row.state.token_ids[-1] for row in rows])
        state_re, logits_rd = self._model.step(
            state_re, last_r.to(state_re.device, non_blocking=True)
        )

        def next_logits(index: int, token_ids_r: torch.Tensor) -> torch.Tensor:
            nonlocal state_re
            state_re, logits_rd = self._model.step(state_re[: len(token_ids_r)], token_ids_r)
            return logits_rd

        found = self._passes.draft(rows, logits_rd, next_logits)
        for row, draft in zip(rows, found, strict=True):
            drafts[row.place] = draft
        return drafts


def _rows(batch: ProposalBatch, states: Mapping[str, RequestState]) -> list[_Row]:
    rows = []
    for place, request in enumerate(batch.requests):
        hidden_ne = request.hidden_states
        assert isinstance(hidden_ne, torch.Tensor), "the runner passes hidden states to a head"
        rows.append(_Row(place, states[request.engine_id], request.max_draft_tokens, hidden_ne[-1]))
    return [rows[i] for i in longest_first(rows)]
