"""What sampling does with whole rows of logits: here with torch, on any device.

Shape suffixes: r sampled rows, g rows of a group, v vocabulary, d logits of a draft model.
"""

from __future__ import annotations

from typing import Protocol

import torch

from .batch import Draws, SamplingBatch
from .drawing import LogitsReading, draw, draw_filtered, keep_filtered, read_logits
from .noise import uniform
from .verification import try_drafts


class SamplingOps(Protocol):
    """A row's result depends on its own logits, parameters, seed and position alone."""

    def read_logits(self, logits_rv: torch.Tensor) -> LogitsReading:
        """Read float32 rows."""
        ...

    def draw(
        self,
        logits_rv: torch.Tensor,
        batch: SamplingBatch,
        positions_r: torch.Tensor,
        token_ids_r: torch.Tensor,
    ) -> None:
        """Draw from rows, or put their drafts to the test, as the batch says. `token_ids_r` come as
        the likeliest tokens, and are overwritten where others are chosen; logits may be, too."""
        ...

    def draw_drafts(
        self,
        logits_rd: torch.Tensor,
        batch: SamplingBatch,
        positions_r: torch.Tensor,
        token_ids_r: torch.Tensor,
        places_d: torch.Tensor | None,
        vocab_size: int,
    ) -> dict[int, torch.Tensor]:
        """As `draw`, for a draft model. Answers by row what those without a seed were drawn from:
        float32 [vocab_size], each logit at its place; None: in their order."""
        ...


class TorchSampling:
    """See SamplingOps. On a GPU nothing waits for it."""

    def read_logits(self, logits_rv: torch.Tensor) -> LogitsReading:
        """See SamplingOps."""
        return read_logits(logits_rv)

    def draw(
        self,
        logits_rv: torch.Tensor,
        batch: SamplingBatch,
        positions_r: torch.Tensor,
        token_ids_r: torch.Tensor,
    ) -> None:
        """See SamplingOps."""
        for draws in batch.draws:
            probs_gv = _probabilities(logits_rv, draws)
            token_ids_r[draws.rows.index_g] = _draw(probs_gv, draws, positions_r)
        if batch.trials is not None:
            try_drafts(logits_rv, batch.trials, positions_r, token_ids_r)

    def draw_drafts(
        self,
        logits_rd: torch.Tensor,
        batch: SamplingBatch,
        positions_r: torch.Tensor,
        token_ids_r: torch.Tensor,
        places_d: torch.Tensor | None,
        vocab_size: int,
    ) -> dict[int, torch.Tensor]:
        """See SamplingOps."""
        found: dict[int, torch.Tensor] = {}
        for draws in batch.draws:
            probs_gd = _probabilities(logits_rd, draws)
            token_ids_r[draws.rows.index_g] = _draw(probs_gd, draws, positions_r)
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


def _probabilities(logits_rv: torch.Tensor, draws: Draws) -> torch.Tensor:
    return draws.rows.take(logits_rv).div_(draws.temperature_g1).softmax(dim=1)


def _draw(probs_gv: torch.Tensor, draws: Draws, positions_r: torch.Tensor) -> torch.Tensor:
    uniform_g = uniform(draws.seeds_g, draws.rows.take(positions_r))
    if draws.filters is None:
        return draw(probs_gv, uniform_g)
    return draw_filtered(probs_gv, uniform_g, draws.filters)
