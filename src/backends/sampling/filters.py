"""min_p, top_k and top_p as one bound per row: the lowest probability that is kept.

A bound on the value keeps all of several equally likely tokens at the edge, so the result does not
depend on how ties are sorted. There are two ways to find the same bound. The first sorts a few of
the likeliest tokens: it is fast and nearly always enough. The second uses a histogram of all
tokens: it needs no sorting and takes the same time for any distribution.

Shape suffixes: r rows, v vocabulary, s likeliest tokens in descending order, n bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_DIGIT_BITS = 15
"""Bits per digit of the radix selection: a float32 in [0, 1] has 30 bits below its sign."""
_BITS_OF_ONE = 0x3F800000
"""The bit pattern of float32 1.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The filters of each row, in the order they apply: min_p, top_k, then top_p of the mass that
    is left."""

    min_p_r1: torch.Tensor
    """float32; 0 keeps all."""
    top_k_r1: torch.Tensor
    """int64; the vocabulary's size keeps all."""
    top_p_r1: torch.Tensor
    """float64; infinity keeps all."""

    def select(self, rows: torch.Tensor | slice) -> Filters:
        """The filters of some rows."""
        return Filters(
            min_p_r1=self.min_p_r1[rows],
            top_k_r1=self.top_k_r1[rows],
            top_p_r1=self.top_p_r1[rows],
        )


def bound_among_best(
    best_rs: torch.Tensor, cdf_rs: torch.Tensor, filters: Filters, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The bound [r, 1], and whether the sorted tokens suffice to know it, bool [r].

    `cdf_rs` is their cumulative sum, in float64; the probabilities of a whole row sum to 1.
    """
    kth_r1 = best_rs.gather(1, filters.top_k_r1.clamp(max=best_rs.shape[1]) - 1)
    kth_r1 = torch.where(filters.top_k_r1 < vocab_size, kth_r1, 0.0)
    lower_r1 = torch.maximum(kth_r1, filters.min_p_r1 * best_rs[:, :1])
    is_bounded_r1 = lower_r1 > 0
    # With top_p alone the total is that of the whole row, 1: the other tokens need no summing.
    left_r1 = cdf_rs.gather(1, _count(best_rs >= lower_r1) - 1)
    total_r1 = torch.where(is_bounded_r1, left_r1, 1.0)
    num_nucleus_r1 = _count(cdf_rs - best_rs < filters.top_p_r1 * total_r1)
    bound_r1 = torch.maximum(lower_r1, best_rs.gather(1, num_nucleus_r1 - 1))
    # The sorted tokens suffice if the last one is below every bound: then so are all other tokens,
    # including ties.
    least_r1 = best_rs[:, -1:]
    is_beyond_r1 = (least_r1 < bound_r1) & (~is_bounded_r1 | (least_r1 < lower_r1))
    is_enough_r1 = is_beyond_r1 | (least_r1 == 0) | (best_rs.shape[1] == vocab_size)
    return bound_r1, is_enough_r1.squeeze(1)


def bound_by_histogram(probs_rv: torch.Tensor, filters: Filters) -> torch.Tensor:
    """The bound [r, 1], computed from all probabilities of the rows, which sum to 1."""
    lower_r1 = probs_rv.amax(dim=1, keepdim=True) * filters.min_p_r1
    if not probs_rv.is_cuda and bool((filters.top_k_r1 == probs_rv.shape[1]).all()):
        kth_r1 = lower_r1
    else:
        ones_rv = torch.ones_like(probs_rv, dtype=torch.float64)
        kth_r1 = _greatest_bound(probs_rv, ones_rv, filters.top_k_r1.double())
    lower_r1 = torch.maximum(lower_r1, kth_r1)
    mass_rv = probs_rv.double().masked_fill_(probs_rv < lower_r1, 0.0)
    # Not a plain sum: torch splits the sum of a single row among threads, which rounds differently
    # from the sum of the same row in a batch.
    wanted_r1 = filters.top_p_r1 * mass_rv.cumsum(dim=1)[:, -1:]
    return torch.maximum(lower_r1, _greatest_bound(probs_rv, mass_rv, wanted_r1))


def _greatest_bound(
    probs_rv: torch.Tensor, weights_rv: torch.Tensor, wanted_r1: torch.Tensor
) -> torch.Tensor:
    """The greatest value such that tokens of at least that probability have the wanted weight; 0
    if all together have less. A radix selection: floats >= 0 have the same order as their bits."""
    # The clamp gives NaN a valid bin.
    bits_rv = probs_rv.view(torch.int32).clamp(min=0, max=_BITS_OF_ONE)
    high_rv = bits_rv >> _DIGIT_BITS
    high_r1, above_r1 = _find_bin(high_rv, weights_rv, wanted_r1)
    weights_rv = weights_rv.masked_fill(high_rv != high_r1, 0.0)
    low_rv = bits_rv & ((1 << _DIGIT_BITS) - 1)
    low_r1, _ = _find_bin(low_rv, weights_rv, wanted_r1 - above_r1)
    return ((high_r1 << _DIGIT_BITS) | low_r1).int().view(torch.float32)


def _find_bin(
    bins_rv: torch.Tensor, weights_rv: torch.Tensor, wanted_r1: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The bin where the weight, summed from the highest bin down, reaches `wanted_r1`, and the
    weight above that bin. Bin 0 if all together have less."""
    num_bins = 1 << _DIGIT_BITS
    weights_rn = weights_rv.new_zeros(len(bins_rv), num_bins)
    weights_rn.scatter_add_(1, (num_bins - 1 - bins_rv).long(), weights_rv)
    cumulative_rn = weights_rn.cumsum(dim=1)
    place_r1 = torch.searchsorted(cumulative_rn, wanted_r1).clamp_(max=num_bins - 1)
    above_r1 = (cumulative_rn - weights_rn).gather(1, place_r1)
    return num_bins - 1 - place_r1, above_r1


def _count(is_kept_rs: torch.Tensor) -> torch.Tensor:
    """The number of kept tokens, [r, 1]: at least one, even in rows with NaN."""
    return is_kept_rs.sum(dim=1, keepdim=True).clamp_(min=1)
