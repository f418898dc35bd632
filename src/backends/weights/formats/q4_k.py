"""Quantizes to GGUF's Q4_K: 256 numbers in 8 sub-blocks, each with a scale and a minimum.

The method is ggml's (quantize_row_q4_K_ref and make_qkx2_quants in ggml-quants.c): a search over
ranges of a sub-block, and for each a least-squares fit of scale and minimum, in which large numbers
weigh more.

Shape suffixes: b blocks, k the 32 numbers of a sub-block, s sub-blocks of all blocks. The numbers
of a sub-block are along the first dimension, because torch adds rows faster than it adds in a row.
"""

from __future__ import annotations

import torch

_TOP = 15
"""The largest integer of 4 bits."""
_TOP_SCALE = 63
"""The largest integer of 6 bits: scales and minimums of sub-blocks are multiples of a block's."""
_NUM_SUB = 8
_SUB_SIZE = 32
_STEPS = tuple(0.2 * step - 1 for step in range(11))
"""Offsets that the search adds to 15, the number of steps in the range of a sub-block. ggml tries
21 offsets, which takes twice as long for errors that are 0.2 % smaller."""


def quantize_q4_k(x: torch.Tensor) -> torch.Tensor:
    """Return the blocks, uint8 [blocks, 144], of float32 [blocks, 256]."""
    x_ks = x.view(-1, _SUB_SIZE).t().contiguous()
    scale_s, minimum_s = _fit(x_ks)
    d_b, scales_bs = _to_six_bits(scale_s)
    dmin_b, minimums_bs = _to_six_bits(minimum_s)
    scale_s = (d_b.float() * scales_bs).flatten()
    minimum_s = (dmin_b.float() * minimums_bs).flatten()
    q_ks = _integers(x_ks + minimum_s, _inverse(scale_s)).to(torch.uint8)
    pairs = q_ks.t().reshape(-1, _NUM_SUB // 2, 2, _SUB_SIZE)
    nibbles = pairs[:, :, 0] | pairs[:, :, 1] << 4
    parts = (
        d_b.view(torch.uint8),
        dmin_b.view(torch.uint8),
        _pack_scales(scales_bs.to(torch.uint8), minimums_bs.to(torch.uint8)),
        nibbles.flatten(1),
    )
    return torch.cat(parts, dim=1)


def _fit(x_ks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and minimum (which is subtracted, so not negative) of each sub-block."""
    offset_s, high_s = x_ks.amin(0).clamp_(max=0), x_ks.amax(0)
    weight_ks = x_ks.square().mean(0).sqrt() + x_ks.abs()
    sums = _Sums(weight_ks, weight_ks * x_ks)
    scale_s = (high_s - offset_s) / _TOP
    sums.add(_integers(x_ks - offset_s, _inverse(scale_s)))
    best_s = sums.error(scale_s, offset_s)
    for step in _STEPS:
        # As in ggml, a better offset also changes the ranges of the following steps.
        sums.add(_integers(x_ks - offset_s, (_TOP + step) * _inverse(high_s - offset_s)))
        fitted_s, fitted_offset_s = sums.least_squares()
        error_s = sums.error(fitted_s, fitted_offset_s)
        is_better = (error_s < best_s) & (fitted_s > 0)
        best_s = torch.where(is_better, error_s, best_s)
        scale_s = torch.where(is_better, fitted_s, scale_s)
        offset_s = torch.where(is_better, fitted_offset_s, offset_s)
    return scale_s, -offset_s


class _Sums:
    """Weighted sums over the numbers x of sub-blocks and the integers q that approximate them."""

    def __init__(self, weight_ks: torch.Tensor, weighted_ks: torch.Tensor) -> None:
        """`weighted_ks` are the numbers times their weights."""
        self._weight_ks, self._weighted_ks = weight_ks, weighted_ks
        self._w, self._x = weight_ks.sum(0), weighted_ks.sum(0)

    def add(self, q_ks: torch.Tensor) -> None:
        """Compute the sums that depend on the integers."""
        self._xq = (self._weighted_ks * q_ks).sum(0)
        weighted_q_ks = self._weight_ks * q_ks
        self._q = weighted_q_ks.sum(0)
        self._qq = weighted_q_ks.mul_(q_ks).sum(0)

    def least_squares(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and offset, at most 0, for which q * scale + offset is nearest to x."""
        inverse = _inverse(self._w * self._qq - self._q.square())
        scale = (self._w * self._xq - self._x * self._q) * inverse
        offset = (self._qq * self._x - self._q * self._xq) * inverse
        is_free = offset <= 0
        through_zero = self._xq * _inverse(self._qq)
        return torch.where(is_free, scale, through_zero), torch.where(is_free, offset, 0)

    def error(self, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        """Return the squared error of q * scale + offset, less the constant sum of x * x."""
        error_of_scale = scale * (scale * self._qq + 2 * (offset * self._q - self._xq))
        return error_of_scale + offset * (offset * self._w - 2 * self._x)


def _integers(x_ks: torch.Tensor, inverse_scale_s: torch.Tensor) -> torch.Tensor:
    return (x_ks * inverse_scale_s).round_().clamp_(0, _TOP)


def _to_six_bits(values_s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float16 [b, 1] and integers [b, 8] whose products are the values of sub-blocks."""
    values_bs = values_s.view(-1, _NUM_SUB)
    unit_b = values_bs.amax(1, keepdim=True) / _TOP_SCALE
    return unit_b.half(), (values_bs * _inverse(unit_b)).round_().clamp_(0, _TOP_SCALE)


def _pack_scales(scales_bs: torch.Tensor, minimums_bs: torch.Tensor) -> torch.Tensor:
    """Pack 8 scales and 8 minimums of 6 bits, uint8 [b, 12].

    The first four of each have their own bytes, whose two highest bits are those of the last four.
    """
    low, high = scales_bs[:, :4], scales_bs[:, 4:]
    low_min, high_min = minimums_bs[:, :4], minimums_bs[:, 4:]
    return torch.cat(
        (
            low | high >> 4 << 6,
            low_min | high_min >> 4 << 6,
            high & 15 | (high_min & 15) << 4,
        ),
        dim=1,
    )


def _inverse(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == 0, 0, 1 / x)
