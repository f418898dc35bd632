"""What a draft model proposes for each row: the likeliest token, or one drawn from what it expects.

A greedy request gets the likeliest token. A seeded one gets the token that the noise of its position
draws from the draft model's distribution: it is the target's as often as the two agree. All others
are drawn with noise of their own, and the distribution goes with them, for rejection sampling.

Shape suffixes: r rows, g rows of a group, f rows with probabilities, d logits of the draft model,
v the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .drawing import LogitsReading, draw, draw_filtered, keep_filtered
from .noise import Purpose, uniform
from .request_state import RequestState
from .sampler import adjust_logits
from .sampling_batch import Draws, SamplingBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One token per row."""

    token_ids_r: torch.Tensor
    """int64, the target's ids."""
    is_finite_r: torch.Tensor
    """bool: False where the draft model failed."""
    probs: dict[int, torch.Tensor]
    """By row, of those drawn for rejection sampling: what the token was drawn from, float32 [v]."""


class DraftDrawing:
    """Draws for the same requests in each pass.

    Penalties count known tokens only, not the drafts before: that costs agreement, nothing else.
    """

    def __init__(
        self,
        states: Sequence[RequestState],
        *,
        token_ids_d: torch.Tensor | None,
        vocab_size: int,
        device: torch.device,
        read: Callable[[torch.Tensor], LogitsReading],
    ) -> None:
        """`token_ids_d`: the target's token of each logit; None: all, in their order."""
        self._states = tuple(states)
        self._vocab_size = vocab_size
        self._token_ids_d = token_ids_d
        self._read = read
        num_logits = vocab_size if token_ids_d is None else len(token_ids_d)
        self._batch = SamplingBatch(states, num_logits, device)
        self._is_widened = self._batch.adjusts and token_ids_d is not None
        if self._is_widened:  # bias and penalties go by the target's ids
            self._batch = SamplingBatch(states, vocab_size, device)
        self._groups = [_Group(draws, states) for draws in self._batch.draws]

    def holds(self, states: Sequence[RequestState]) -> bool:
        """True if this was made for these very requests, in this order."""
        return self._states == tuple(states)

    def draw(self, logits_rd: torch.Tensor, positions_r: torch.Tensor) -> Drawn:
        """Logits are float32 and are overwritten; positions are those of the tokens to come."""
        if self._is_widened:
            logits_rd = self._widen(logits_rd, -torch.inf)
        reading = self._read(logits_rd)
        best_r = reading.best_r
        is_finite_r = reading.is_finite_r
        if self._is_widened:
            is_finite_r = ~logits_rd.isnan().any(dim=1)
        if self._batch.adjusts:
            adjust_logits(logits_rd, self._batch)
            best_r = self._read(logits_rd).best_r
        probs: dict[int, torch.Tensor] = {}
        for group in self._groups:
            drawn_g, probs_fd = group.draw(logits_rd, positions_r)
            best_r[group.draws.rows.index_g] = drawn_g
            if group.free_rows:
                probs.update(zip(group.free_rows, self._of_target(probs_fd), strict=True))
        if self._token_ids_d is not None and not self._is_widened:
            best_r = self._token_ids_d.index_select(0, best_r)
        return Drawn(token_ids_r=best_r, is_finite_r=is_finite_r, probs=probs)

    def _of_target(self, probs_fd: torch.Tensor) -> torch.Tensor:
        if self._token_ids_d is None or self._is_widened:
            return probs_fd
        return self._widen(probs_fd, 0.0)

    def _widen(self, x_rd: torch.Tensor, fill: float) -> torch.Tensor:
        assert self._token_ids_d is not None
        wide_rv = x_rd.new_full((len(x_rd), self._vocab_size), fill)
        return wide_rv.index_copy_(1, self._token_ids_d, x_rd)


class _Group:
    """Rows that are drawn alike."""

    def __init__(self, draws: Draws, states: Sequence[RequestState]) -> None:
        rows = draws.rows.index_g.tolist()
        is_free = [states[row].start.sampling_params.seed is None for row in rows]
        self.draws = draws
        self.free_rows = [row for row, free in zip(rows, is_free, strict=True) if free]
        """Those without a seed."""
        places = [place for place, free in enumerate(is_free) if free]
        self._places_f = torch.tensor(places, dtype=torch.int64, device=draws.seeds_g.device)
        self._seeds_g = draws.seeds_g.clone()
        self._seeds_g[self._places_f] ^= int(Purpose.DRAFT)

    def draw(
        self, logits_rd: torch.Tensor, positions_r: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [g], and what those without a seed were drawn from [f, d]."""
        draws = self.draws
        probs_gd = draws.rows.take(logits_rd).div(draws.temperature_g1).softmax(dim=1)
        noise_g = uniform(self._seeds_g, draws.rows.take(positions_r))
        if draws.filters is None:
            return draw(probs_gd, noise_g), self._free(probs_gd)
        drawn_g = draw_filtered(probs_gd, noise_g, draws.filters)
        if not self.free_rows:
            return drawn_g, probs_gd[:0]
        kept_fd = self._free(keep_filtered(probs_gd, draws.filters))
        return drawn_g, kept_fd.div_(kept_fd.sum(dim=1, keepdim=True))

    def _free(self, x_gd: torch.Tensor) -> torch.Tensor:
        is_all = len(self.free_rows) == len(x_gd)
        return x_gd if is_all else x_gd.index_select(0, self._places_f)
