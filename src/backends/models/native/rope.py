"""Rotary position embeddings: the frequencies, as in transformers, and the rotation.

Shape suffixes: t tokens, n heads, d head size, c half of the rotated elements of a head (d / 2
unless the rotation is partial), p positions.
Sources: RoFormer (arXiv 2104.09864), YaRN (arXiv 2309.00071), LongRoPE (arXiv 2402.13753),
transformers' modeling_rope_utils.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...weights.config.rope_config import RopeConfig, RopeScaling


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """The cosines and sines of every position."""

    cos_pc: torch.Tensor
    sin_pc: torch.Tensor
    axis_c: torch.Tensor | None = None
    """For each column, the rotary position that it uses (0 frame, 1 row, 2 column), int64. See
    RopeConfig.sections. None: a token has one position."""

    def at(self, positions_t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and sines of positions, [t, 1, c]: the same for every head.

        Positions may be [3, t], if the table has axes.
        """
        if positions_t.dim() == 2:
            assert self.axis_c is not None, "only such models have three positions"
            positions_tc = positions_t[self.axis_c].T
            cos_tc, sin_tc = (one.gather(0, positions_tc) for one in (self.cos_pc, self.sin_pc))
            return cos_tc.unsqueeze(1), sin_tc.unsqueeze(1)
        cos_tc = self.cos_pc.index_select(0, positions_t)
        sin_tc = self.sin_pc.index_select(0, positions_t)
        return cos_tc.unsqueeze(1), sin_tc.unsqueeze(1)


def rotate(x_tnd: torch.Tensor, cos_t1c: torch.Tensor, sin_t1c: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (x[i], x[i + c]) by its angle, as rotate_half in transformers does.

    Elements from 2c on are not rotated.
    """
    size = cos_t1c.shape[-1]
    first, second = x_tnd[..., :size], x_tnd[..., size : 2 * size]
    return torch.cat(
        (
            first * cos_t1c - second * sin_t1c,
            second * cos_t1c + first * sin_t1c,
            x_tnd[..., 2 * size :],
        ),
        dim=-1,
    )


def build_rotary_table(
    rope: RopeConfig,
    *,
    rotary_size: int,
    num_positions: int,
    dtype: torch.dtype,
    device: torch.device,
) -> RotaryTable:
    """Build the table of positions [0, num_positions) in float32, then round it to `dtype`.

    `rotary_size` is the number of rotated elements of a head.
    """
    positions_p = torch.arange(num_positions, dtype=torch.float32)
    frequencies_c = inverse_frequencies(rope, rotary_size, num_positions)
    angles_pc = torch.outer(positions_p, frequencies_c)
    scale = attention_factor(rope)
    axis_c = None
    if rope.sections:
        axis_c = torch.arange(3).repeat_interleave(torch.tensor(rope.sections)).to(device)
    return RotaryTable(
        (angles_pc.cos() * scale).to(device, dtype),
        (angles_pc.sin() * scale).to(device, dtype),
        axis_c,
    )


def inverse_frequencies(rope: RopeConfig, rotary_size: int, num_positions: int) -> torch.Tensor:
    """Return the radians per position of each pair, float32 [c].

    `num_positions` is the length of the longest sequence.
    """
    frequencies_c = _base_frequencies(rope, rotary_size)
    if rope.scaling is RopeScaling.LINEAR:
        frequencies_c = frequencies_c / rope.factor
    elif rope.scaling is RopeScaling.LLAMA3:
        frequencies_c = _llama3(rope, frequencies_c)
    elif rope.scaling is RopeScaling.YARN:
        frequencies_c = _yarn(rope, rotary_size)
    elif rope.scaling is RopeScaling.LONGROPE:
        frequencies_c = _longrope(rope, rotary_size, num_positions)
    if rope.frequency_divisors is not None:
        frequencies_c = frequencies_c / torch.tensor(rope.frequency_divisors)
    return frequencies_c


def attention_factor(rope: RopeConfig) -> float:
    """Return the factor of cos and sin; 1 except for YaRN and LongRoPE."""
    if rope.scaling not in (RopeScaling.YARN, RopeScaling.LONGROPE):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.scaling is RopeScaling.LONGROPE:
        return _longrope_factor(rope)
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _base_frequencies(rope: RopeConfig, rotary_size: int) -> torch.Tensor:
    exponents_c = torch.arange(0, rotary_size, 2, dtype=torch.float32) / rotary_size
    return 1.0 / (rope.theta**exponents_c)


def _llama3(rope: RopeConfig, frequencies_c: torch.Tensor) -> torch.Tensor:
    """Stretch long waves by the factor, keep short ones, and interpolate between them."""
    assert rope.original_max_position_embeddings is not None
    context = rope.original_max_position_embeddings
    low, high = rope.low_freq_factor, rope.high_freq_factor
    wavelengths_c = 2 * math.pi / frequencies_c
    is_long = wavelengths_c > context / low
    scaled_c = torch.where(is_long, frequencies_c / rope.factor, frequencies_c)
    smooth_c = (context / wavelengths_c - low) / (high - low)
    between_c = (1 - smooth_c) * scaled_c / rope.factor + smooth_c * scaled_c
    is_between = ~(wavelengths_c < context / high) & ~is_long
    return torch.where(is_between, between_c, scaled_c)


def _yarn(rope: RopeConfig, rotary_size: int) -> torch.Tensor:
    """Keep fast dimensions, interpolate slow ones, with a linear ramp between them."""
    exponents_c = torch.arange(0, rotary_size, 2, dtype=torch.float32) / rotary_size
    wavelengths_c = rope.theta**exponents_c
    low, high = _yarn_range(rope, rotary_size)
    ramp_c = (torch.arange(rotary_size // 2, dtype=torch.float32) - low) / (high - low)
    extrapolated_c = 1 - ramp_c.clamp(0, 1)
    return (1.0 / (rope.factor * wavelengths_c)) * (1 - extrapolated_c) + (
        1.0 / wavelengths_c
    ) * extrapolated_c


def _yarn_range(rope: RopeConfig, rotary_size: int) -> tuple[float, float]:
    """Return the first and the last dimension of the ramp."""
    assert rope.original_max_position_embeddings is not None
    context = rope.original_max_position_embeddings

    def dimension(rotations: float) -> float:
        return (rotary_size * math.log(context / (rotations * 2 * math.pi))) / (
            2 * math.log(rope.theta)
        )

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_size - 1)
    return (low, high) if low != high else (low, high + 0.001)


def _longrope(rope: RopeConfig, rotary_size: int, num_positions: int) -> torch.Tensor:
    """Divide the frequencies by the numbers for long sequences if any may be long."""
    assert rope.original_max_position_embeddings is not None
    is_long = num_positions > rope.original_max_position_embeddings
    divisors_c = torch.tensor(rope.long_factors if is_long else rope.short_factors)
    exponents_c = torch.arange(0, rotary_size, 2, dtype=torch.float32) / rotary_size
    return 1.0 / (divisors_c * rope.theta**exponents_c)


def _longrope_factor(rope: RopeConfig) -> float:
    assert rope.original_max_position_embeddings is not None
    if rope.factor <= 1:
        return 1.0
    original = rope.original_max_position_embeddings
    return math.sqrt(1 + math.log(rope.factor) / math.log(original))


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
