"""The sampling operations that read whole rows of logits, and their implementation in torch.

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
    """Operations on rows of logits. A row's result depends only on its own logits, parameters, seed
    and position."""

    def read_logits(self, logits_rv: torch.Tensor) -> LogitsReading:
        """Find each row's likeliest token and check that the row is finite. Logits are float32."""
        ...

    def draw(
        self,
        logits_rv: torch.Tensor,
        batch: SamplingBatch,
        positions_r: torch.Tensor,
        token_ids_r: torch.Tensor,
    ) -> None:
        """Draw a token for each row, or verify its draft, as the batch says.

        `token_ids_r` holds the likeliest tokens and is overwritten where another one is chosen.
        Logits may be overwritten, too.
        """
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
        """Like `draw`, for a draft model. Returns, by row, the distribution of each draw without a
        seed: float32 [vocab_size].

        `places_d` maps each logit to its token id; None if the logits are in the order of ids.
        """
        ...


class TorchSampling:
    """SamplingOps in torch, on any device. On a GPU it never waits for a result."""

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
