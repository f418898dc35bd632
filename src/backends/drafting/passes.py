"""The passes of one call for drafts: each draws one token more for every request that has not enough.

Shape suffixes: r rows, d logits of the draft model, v the target's vocabulary, k draft tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from ...core.contract.speculation import Draft
from ..sampling.ops import SamplingOps
from ..state.draft_probs import DraftProbs
from ..state.request_state import RequestState
from .drawing import DraftDrawing, Drawn


class DraftRow(Protocol):
    """A request that drafts are made for."""

    @property
    def state(self) -> RequestState: ...
    @property
    def num_drafts(self) -> int:
        """How many to make, at least 1."""
        ...


class DraftPasses:
    """Draws for one draft model, step after step."""

    def __init__(
        self,
        *,
        token_ids_d: torch.Tensor | None,
        vocab_size: int,
        device: torch.device,
        sampling: SamplingOps,
    ) -> None:
        """`token_ids_d`: the target's token of each logit; None: all, in their order."""
        self._token_ids_d = token_ids_d
        self._vocab_size = vocab_size
        self._device = device
        self._sampling = sampling
        self._drawing: DraftDrawing | None = None

    def draft(
        self,
        rows: Sequence[DraftRow],
        logits_rd: torch.Tensor,
        next_logits: Callable[[int, torch.Tensor], torch.Tensor],
    ) -> list[Draft]:
        """One draft per row; rows stand in the order of their number of drafts, the longest first, so
        that who has enough leaves at the end.

        `logits_rd` are those of the first token. `next_logits(index, token_ids_r)` answers those of the
        tokens after number `index`, of which there are as many as rows that want another one.
        """
        passes: list[Drawn] = []
        for index in range(rows[0].num_drafts):
            asking = [row for row in rows if row.num_drafts > index]
            if index:
                last_r = passes[-1].token_ids_r[: len(asking)]
                logits_rd = next_logits(index - 1, last_r)
            positions = [len(row.state.token_ids) + index for row in asking]
            positions_r = torch.tensor(positions).to(self._device, non_blocking=True)
            passes.append(self._drawing_of(asking).draw(logits_rd, positions_r))
        return _as_drafts(rows, passes)

    def _drawing_of(self, rows: Sequence[DraftRow]) -> DraftDrawing:
        """As a rule that of the pass before, or of the step before."""
        states = [row.state for row in rows]
        if self._drawing is None or not self._drawing.holds(states):
            self._drawing = DraftDrawing(
                states,
                token_ids_d=self._token_ids_d,
                vocab_size=self._vocab_size,
                device=self._device,
                sampling=self._sampling,
            )
        return self._drawing


def longest_first(rows: Sequence[DraftRow]) -> list[int]:
    """Indices of the rows, in the order that `DraftPasses.draft` asks for."""
    return sorted(range(len(rows)), key=lambda i: -rows[i].num_drafts)


def _as_drafts(rows: Sequence[DraftRow], passes: Sequence[Drawn]) -> list[Draft]:
    """One that came out of what is not a number ends before it."""
    token_ids = [drawn.token_ids_r.tolist() for drawn in passes]
    is_finite = [drawn.is_finite_r.tolist() for drawn in passes]
    drafts = []
    for place, row in enumerate(rows):
        indices = range(row.num_drafts)
        end = next((i for i in indices if not is_finite[i][place]), row.num_drafts)
        probs = None
        if end and place in passes[0].probs:
            found = [drawn.probs[place] for drawn in passes[:end]]
            # Without a copy where it is one: a row may have 10^5 numbers.
            probs_kv = found[0].unsqueeze(0) if end == 1 else torch.stack(found)
            probs = DraftProbs(probs_kv=probs_kv)
        drafts.append(Draft(token_ids=[token_ids[i][place] for i in range(end)], probs=probs))
    return drafts
