"""Choosing a draft model's token for each row: the likeliest, or one drawn from its distribution.

A greedy request gets the likeliest token. A seeded request gets the token that is drawn with the
noise of its position, the same noise as the target's: the more the two distributions agree, the
more often it is the target's token. All other drafts are drawn with noise of their own, and come
with their distribution, for rejection sampling.

Shape suffixes: r rows, d logits of the draft model, v the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..sampling.batch import SamplingBatch
from ..sampling.ops import RowsToDraw, SamplingOps
from ..sampling.sampler import adjust_logits, find_exhausted, keep_near_best
from ..state.request_state import RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The tokens of one pass, one per row."""

    token_ids_r: torch.Tensor
    """int64, the target's ids."""
    is_finite_r: torch.Tensor
    """bool: False where the draft model's logits are not finite."""
    probs: dict[int, torch.Tensor]
    """By row: the distribution that the token was drawn from, float32 [v]. Only rows whose drafts
    need rejection sampling have an entry."""


class DraftDrawing:
    """Chooses tokens for the same requests in each pass.

    Penalties count known tokens only, not the drafts before. This only lowers the acceptance rate.
    """

    def __init__(
        self,
        states: Sequence[RequestState],
        *,
        token_ids_d: torch.Tensor | None,
        vocab_size: int,
        device: torch.device,
        sampling: SamplingOps,
    ) -> None:
        """`token_ids_d` is the target's token id of each logit; None if logits are in the order of
        all ids."""
        self._states = tuple(states)
        self._vocab_size = vocab_size
        self._token_ids_d = token_ids_d
        self._sampling = sampling
        num_logits = vocab_size if token_ids_d is None else len(token_ids_d)
        self._batch = SamplingBatch(states, num_logits, device, are_drafts=True)
        self._is_widened = self._batch.adjusts and token_ids_d is not None
        if self._is_widened:  # bias and penalties go by the target's ids
            self._batch = SamplingBatch(states, vocab_size, device, are_drafts=True)

    def holds(self, states: Sequence[RequestState]) -> bool:
        """Whether this was made for these requests, in this order."""
        return self._states == tuple(states)

    def draw(self, logits_rd: torch.Tensor, positions_r: torch.Tensor) -> Drawn:
        """Choose one token per row. Logits are float32 and are overwritten; `positions_r` are the
        positions of the tokens to choose."""
        if self._is_widened:
            logits_rd = self._widen(logits_rd)
        reading = self._sampling.read_logits(logits_rd)
        token_ids_r = reading.best_r
        is_finite_r = reading.is_finite_r
        if self._is_widened:
            is_finite_r = ~logits_rd.isnan().any(dim=1)
        if self._batch.adjusts:
            adjust_logits(logits_rd, self._batch)
            token_ids_r = self._sampling.read_logits(logits_rd).best_r
            for row in find_exhausted(logits_rd, token_ids_r, self._batch):
                is_finite_r[row] = False
        keep_near_best(logits_rd, self._batch)
        places_d = None if self._is_widened else self._token_ids_d
        probs: dict[int, torch.Tensor] = {}
        if self._batch.draws_any:
            rows = RowsToDraw(
                logits_rv=logits_rd,
                batch=self._batch,
                positions_r=positions_r,
                token_ids_r=token_ids_r,
            )
            probs = self._sampling.draw_drafts(rows, places_d, self._vocab_size)
        if places_d is not None:
            token_ids_r = places_d.index_select(0, token_ids_r)
        return Drawn(token_ids_r=token_ids_r, is_finite_r=is_finite_r, probs=probs)

    def _widen(self, logits_rd: torch.Tensor) -> torch.Tensor:
        assert self._token_ids_d is not None
        wide_rv = logits_rd.new_full((len(logits_rd), self._vocab_size), -torch.inf)
        return wide_rv.index_copy_(1, self._token_ids_d, logits_rd)
