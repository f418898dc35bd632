"""Picking one token per row: the most likely one, or one drawn with its probability.

A draw inverts the cumulative distribution at one uniform number, in float64. Rows do not
influence each other: a row's result is the same alone and in a batch.

Most of the time goes into reading the vocabulary. So it is read in blocks: one pass computes the
sum or maximum of each block, and only the block that holds the answer is read token by token.

Shape suffixes: r rows, v vocabulary, c blocks of it, w tokens of a block, s likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .filters import Filters, bound_among_best, bound_by_histogram

_WIDEST_BLOCK = 256
_NARROWEST_BLOCK = 16
_NUM_BEST = 128
"""Number of likeliest tokens to sort. They nearly always include all tokens that filters keep."""
_CPU_ROWS, _GPU_ROWS = 4, 64
"""Rows per histogram pass: limited by a core's cache on a CPU, by memory on a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsReading:
    """The likeliest token of each row of logits, and whether the row is finite."""

    best_r: torch.Tensor
    """int64: the token with the highest logit; the lowest id wins a tie. Meaningless in a row that
    is not finite."""
    is_finite_r: torch.Tensor
    """bool: False where the row holds NaN or infinity."""


def read_logits(logits_rv: torch.Tensor) -> LogitsReading:
    """Find each row's likeliest token and check that the row is finite. Logits are float32."""
    # One NaN or infinity makes the sum NaN or infinite, so a single pass finds it.
    return LogitsReading(best_r=most_likely(logits_rv), is_finite_r=logits_rv.sum(dim=1).isfinite())


def most_likely(logits_rv: torch.Tensor) -> torch.Tensor:
    """int64 [r]: the token with the highest logit; the lowest id wins a tie."""
    width = _block_width(logits_rv.shape[1])
    if width < _NARROWEST_BLOCK or logits_rv.is_cuda:
        return logits_rv.argmax(dim=1)
    blocks_rcw = logits_rv.view(len(logits_rv), -1, width)
    block_r1 = blocks_rcw.amax(dim=2).argmax(dim=1, keepdim=True)
    return block_r1.squeeze(1) * width + _take_block(blocks_rcw, block_r1).argmax(dim=1)


def draw(probs_rv: torch.Tensor, uniform_r: torch.Tensor) -> torch.Tensor:
    """int64 [r]: one token per row, drawn in proportion to `probs_rv`; never one with 0."""
    width = _block_width(probs_rv.shape[1])
    blocks_rcw = probs_rv.view(len(probs_rv), -1, width)
    mass_rc = blocks_rcw.sum(dim=2, dtype=torch.float64)
    cdf_rc = mass_rc.cumsum(dim=1)
    target_r1 = uniform_r.unsqueeze(1) * cdf_rc[:, -1:]
    block_r1 = _invert(mass_rc, cdf_rc, target_r1)
    before_r1 = torch.where(block_r1 > 0, cdf_rc.gather(1, (block_r1 - 1).clamp(min=0)), 0.0)
    block_rw = _take_block(blocks_rcw, block_r1)
    cdf_rw = block_rw.cumsum(dim=1, dtype=torch.float64)
    place_r1 = _invert(block_rw, cdf_rw, target_r1 - before_r1)
    return (block_r1 * width + place_r1).squeeze(1)


def draw_filtered(
    probs_rv: torch.Tensor, uniform_r: torch.Tensor, filters: Filters
) -> torch.Tensor:
    """int64 [r]: like `draw`, among the tokens that the filters keep. Rows must sum to 1."""
    if probs_rv.is_cuda:  # reading back which rows need the second way would stall the GPU
        return _draw_above_bounds(probs_rv, uniform_r, filters, _GPU_ROWS)
    token_ids_r, is_done_r = _draw_among_best(probs_rv, uniform_r, filters)
    rest = (~is_done_r).nonzero().squeeze(1)
    if len(rest):
        token_ids_r[rest] = _draw_above_bounds(
            probs_rv.index_select(0, rest), uniform_r[rest], filters.select(rest), _CPU_ROWS
        )
    return token_ids_r


def keep_filtered(probs_rv: torch.Tensor, filters: Filters) -> torch.Tensor:
    """The weights that `draw_filtered` draws from: [r, v], not normalized, 0 for other tokens."""
    if probs_rv.is_cuda:
        return torch.cat(list(_keep_above_bounds(probs_rv, filters, _GPU_ROWS)))
    best_rs, ids_rs = probs_rv.topk(min(_NUM_BEST, probs_rv.shape[1]), dim=1)
    cdf_rs = best_rs.cumsum(dim=1, dtype=torch.float64)
    bound_r1, is_enough_r = bound_among_best(best_rs, cdf_rs, filters, probs_rv.shape[1])
    best_rs = best_rs.masked_fill_(best_rs < bound_r1, 0.0)
    kept_rv = torch.zeros_like(probs_rv).scatter_(1, ids_rs, best_rs)
    rest = (~is_enough_r).nonzero().squeeze(1)
    if len(rest):
        probs_rv, filters = probs_rv.index_select(0, rest), filters.select(rest)
        kept_rv[rest] = torch.cat(list(_keep_above_bounds(probs_rv, filters, _CPU_ROWS)))
    return kept_rv


def _draw_among_best(
    probs_rv: torch.Tensor, uniform_r: torch.Tensor, filters: Filters
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw among the likeliest tokens; also whether they include every token the filters keep."""
    best_rs, ids_rs = probs_rv.topk(min(_NUM_BEST, probs_rv.shape[1]), dim=1)
    cdf_rs = best_rs.cumsum(dim=1, dtype=torch.float64)
    bound_r1, is_enough_r = bound_among_best(best_rs, cdf_rs, filters, probs_rv.shape[1])
    num_kept_r1 = (best_rs >= bound_r1).sum(dim=1, keepdim=True).clamp_(min=1)
    mass_r1 = cdf_rs.gather(1, num_kept_r1 - 1)
    place_r1 = _invert(best_rs, cdf_rs, uniform_r.unsqueeze(1) * mass_r1)
    return ids_rs.gather(1, place_r1).squeeze(1), is_enough_r


def _draw_above_bounds(
    probs_rv: torch.Tensor, uniform_r: torch.Tensor, filters: Filters, num_at_once: int
) -> torch.Tensor:
    parts = _keep_above_bounds(probs_rv, filters, num_at_once)
    starts = range(0, len(probs_rv), num_at_once)
    drawn = [
        draw(kept_rv, uniform_r[start : start + num_at_once])
        for kept_rv, start in zip(parts, starts, strict=True)
    ]
    return torch.cat(drawn)


def _keep_above_bounds(
    probs_rv: torch.Tensor, filters: Filters, num_at_once: int
) -> Iterator[torch.Tensor]:
    """Filter `num_at_once` rows at a time."""
    for start in range(0, len(probs_rv), num_at_once):
        rows = slice(start, start + num_at_once)
        bound_r1 = bound_by_histogram(probs_rv[rows], filters.select(rows))
        yield probs_rv[rows].masked_fill(probs_rv[rows] < bound_r1, 0.0)


def _invert(
    weights_rs: torch.Tensor, cdf_rs: torch.Tensor, target_r1: torch.Tensor
) -> torch.Tensor:
    """The first place whose cumulative weight exceeds the target."""
    place_r1 = torch.searchsorted(cdf_rs, target_r1, right=True).clamp_(max=cdf_rs.shape[1] - 1)
    # Sums made in another order, or in parallel, round differently: the place that is found may
    # have no weight, or lie past the end.
    is_possible_r1 = weights_rs.gather(1, place_r1) > 0
    return torch.where(is_possible_r1, place_r1, weights_rs.argmax(dim=1, keepdim=True))


def _take_block(blocks_rcw: torch.Tensor, block_r1: torch.Tensor) -> torch.Tensor:
    """One block of each row: [r, w]."""
    index_r1w = block_r1.unsqueeze(2).expand(-1, 1, blocks_rcw.shape[2])
    return blocks_rcw.gather(1, index_r1w).squeeze(1)


def _block_width(vocab_size: int) -> int:
    """The widest power of two that divides the vocabulary; nearly all are multiples of 64."""
    return min(vocab_size & -vocab_size, _WIDEST_BLOCK)
