"""The sampling operations that read whole rows of logits, and their implementation in torch.

Shape suffixes: r sampled rows, g rows of a group, v vocabulary, d logits of a draft model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from .batch import Draws, SamplingBatch
from .drawing import LogitsReading, draw, draw_filtered, keep_filtered, read_logits
from .masks import RowMasks, apply_masks
from .noise import uniform
from .verification import try_drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsToDraw:
    """Rows of logits, and where the tokens that are drawn from them go."""

    logits_rv: torch.Tensor
    """float32; may be overwritten. For a draft model, a row may have fewer logits: [r, d]."""
    batch: SamplingBatch
    positions_r: torch.Tensor
    """int64: the positions of the tokens to draw."""
    token_ids_r: torch.Tensor
    """int64: the likeliest tokens at first; overwritten where another one is drawn."""


class SamplingOps(Protocol):
    """Operations on rows of logits. A row's result depends only on its own logits, parameters, seed
    and position."""

    def read_logits(self, logits_rv: torch.Tensor) -> LogitsReading:
        """Find each row's likeliest token and check that the row is finite. Logits are float32."""
        ...

    def mask(self, logits_rv: torch.Tensor, masks: RowMasks) -> None:
        """Set the logits of the tokens that masks forbid to -inf, in place."""
        ...

    def draw(self, rows: RowsToDraw) -> None:
        """Draw a token for each row, or verify its draft, as the batch says."""
        ...

    def draw_drafts(
        self, rows: RowsToDraw, places_d: torch.Tensor | None, vocab_size: int
    ) -> dict[int, torch.Tensor]:
        """Like `draw`, for a draft model. Returns, by row, the distribution of each draw without a
        seed: float32 [vocab_size].

        `places_d` maps each logit to its token id; None if the logits are in the order of ids.
        """
        ...


class TorchSampling:
    """SamplingOps in torch, on any device. On a GPU it never waits for a result."""

    def read_logits(self, logits_rv: torch.Tensor) -> LogitsReading:
        return read_logits(logits_rv)

    def mask(self, logits_rv: torch.Tensor, masks: RowMasks) -> None:
        apply_masks(logits_rv, masks)

    def draw(self, rows: RowsToDraw) -> None:
        for draws in rows.batch.draws:
            _draw(_probabilities(rows, draws), draws, rows)
        if rows.batch.trials is not None:
            try_drafts(rows.logits_rv, rows.batch.trials, rows.positions_r, rows.token_ids_r)

    def draw_drafts(
        self, rows: RowsToDraw, places_d: torch.Tensor | None, vocab_size: int
    ) -> dict[int, torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        for draws in rows.batch.draws:
            probs_gd = _probabilities(rows, draws)
            _draw(probs_gd, draws, rows)
            if not draws.unseeded:
                continue
            if draws.filters is not None:
                probs_gd = keep_filtered(probs_gd, draws.filters)
                probs_gd.div_(probs_gd.sum(dim=1, keepdim=True))
            if places_d is not None:
                wide_gv = probs_gd.new_zeros(len(probs_gd), vocab_size)
                probs_gd = wide_gv.index_copy_(1, places_d, probs_gd)
            found.update((row, probs_gd[place]) for place, row in draws.unseeded)
        return found


def _probabilities(rows: RowsToDraw, draws: Draws) -> torch.Tensor:
    return draws.rows.take(rows.logits_rv).div_(draws.temperature_g1).softmax(dim=1)


def _draw(probs_gv: torch.Tensor, draws: Draws, rows: RowsToDraw) -> None:
    uniform_g = uniform(draws.seeds_g, draws.rows.take(rows.positions_r))
    if draws.filters is None:
        drawn_g = draw(probs_gv, uniform_g)
    else:
        drawn_g = draw_filtered(probs_gv, uniform_g, draws.filters)
    rows.token_ids_r[draws.rows.index_g] = drawn_g
