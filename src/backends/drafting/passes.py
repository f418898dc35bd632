"""The passes of one call for drafts: each adds one token to every draft that is still too short.

Shape suffixes: r rows, d logits of the draft model, v the target's vocabulary, k draft tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from ...core.contract.providers.speculation import Draft
from ..state.draft_probs import DraftProbs
from ..state.request_state import RequestState
from .drawing import DraftDrawing, Drawn


class DraftRow(Protocol):
    """A request to make a draft for."""

    @property
    def state(self) -> RequestState: ...
    @property
    def num_drafts(self) -> int:
        """The number of draft tokens to make, at least 1."""
        ...


class DraftPasses:
    """Runs the passes for one draft model."""

    def __init__(self, device: torch.device, **options: Any) -> None:
        """`options`: those of DraftDrawing."""
        self._device, self._options = device, options
        self._drawing: DraftDrawing | None = None

    def draft(
        self,
        rows: Sequence[DraftRow],
        logits_rd: torch.Tensor,
        next_logits: Callable[[int, torch.Tensor], torch.Tensor],
    ) -> list[Draft]:
        """Make one draft per row. Rows are sorted by `longest_first`, so that rows with complete
        drafts drop off at the end.

        `logits_rd` are the logits of the first tokens. `next_logits(index, token_ids_r)` returns
        the logits that follow tokens number `index`, for the first `len(token_ids_r)` rows.
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
        """The DraftDrawing of these rows; usually that of the last pass or step is reused."""
        states = [row.state for row in rows]
        if self._drawing is None or not self._drawing.holds(states):
            self._drawing = DraftDrawing(states, device=self._device, **self._options)
        return self._drawing


def longest_first(rows: Sequence[DraftRow]) -> list[int]:
    """Indices of the rows, in the order that `DraftPasses.draft` needs."""
    return sorted(range(len(rows)), key=lambda i: -rows[i].num_drafts)


def _as_drafts(rows: Sequence[DraftRow], passes: Sequence[Drawn]) -> list[Draft]:
    """Collect the passes' tokens into drafts. A draft ends before a token whose logits are not
    finite."""
    token_ids = [drawn.token_ids_r.tolist() for drawn in passes]
    is_finite = [drawn.is_finite_r.tolist() for drawn in passes]
    drafts = []
    for place, row in enumerate(rows):
        indices = range(row.num_drafts)
        end = next((i for i in indices if not is_finite[i][place]), row.num_drafts)
        probs = None
        if end and place in passes[0].probs:
            found = [drawn.probs[place] for drawn in passes[:end]]
            # A single row is not copied: it may have 10^5 numbers.
            probs_kv = found[0].unsqueeze(0) if end == 1 else torch.stack(found)
            probs = DraftProbs(probs_kv=probs_kv)
        drafts.append(Draft(token_ids=[token_ids[i][place] for i in range(end)], probs=probs))
    return drafts
