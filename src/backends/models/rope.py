"""Rotary position embeddings: the frequencies, as in transformers, and the rotation.

Shape suffixes: t tokens, n heads, d head size, c half of it, p positions.
Sources: RoFormer (arXiv 2104.09864), YaRN (arXiv 2309.00071), transformers' modeling_rope_utils.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..weights.model_config import RopeConfig, RopeScaling


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """The cosines and sines of every position."""

    cos_pc: torch.Tensor
    sin_pc: torch.Tensor

    def at(self, positions_t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and sines of positions, [t, 1, c]: the same for every head."""
        cos_tc = self.cos_pc.index_select(0, positions_t)
        sin_tc = self.sin_pc.index_select(0, positions_t)
        return cos_tc.unsqueeze(1), sin_tc.unsqueeze(1)


def rotate(x_tnd: torch.Tensor, cos_t1c: torch.Tensor, sin_t1c: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (x[i], x[i + c]) by its angle, as rotate_half in transformers does."""
    first, second = x_tnd.chunk(2, dim=-1)
    return torch.cat(
        (first * cos_t1c - second * sin_t1c, second * cos_t1c + first * sin_t1c), dim=-1
    )


def build_rotary_table(
    rope: RopeConfig,
    *,
    head_size: int,
    num_positions: int,
    dtype: torch.dtype,
    device: torch.device,
) -> RotaryTable:
    """Build the table of positions [0, num_positions) in float32, then round it to `dtype`."""
    positions_p = torch.arange(num_positions, dtype=torch.float32)
    angles_pc = torch.outer(positions_p, inverse_frequencies(rope, head_size))
    scale = attention_factor(rope)
    return RotaryTable(
        (angles_pc.cos() * scale).to(device, dtype), (angles_pc.sin() * scale).to(device, dtype)
    )


def inverse_frequencies(rope: RopeConfig, head_size: int) -> torch.Tensor:
    """Return the radians per position of each pair, float32 [c]."""
    frequencies_c = _base_frequencies(rope, head_size)
    if rope.scaling is RopeScaling.LINEAR:
        frequencies_c = frequencies_c / rope.factor
    elif rope.scaling is RopeScaling.LLAMA3:
        frequencies_c = _llama3(rope, frequencies_c)
    elif rope.scaling is RopeScaling.YARN:
        frequencies_c = _yarn(rope, head_size)
    if rope.frequency_divisors is not None:
        frequencies_c = frequencies_c / torch.tensor(rope.frequency_divisors)
    return frequencies_c


def attention_factor(rope: RopeConfig) -> float:
    """Return the factor of cos and sin; 1 except for YaRN."""
    if rope.scaling is not RopeScaling.YARN:
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _base_frequencies(rope: RopeConfig, head_size: int) -> torch.Tensor:
    exponents_c = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
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


def _yarn(rope: RopeConfig, head_size: int) -> torch.Tensor:
    """Keep fast dimensions, interpolate slow ones, with a linear ramp between them."""
    exponents_c = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
    wavelengths_c = rope.theta**exponents_c
    low, high = _yarn_range(rope, head_size)
    ramp_c = (torch.arange(head_size // 2, dtype=torch.float32) - low) / (high - low)
    extrapolated_c = 1 - ramp_c.clamp(0, 1)
    return (1.0 / (rope.factor * wavelengths_c)) * (1 - extrapolated_c) + (
        1.0 / wavelengths_c
    ) * extrapolated_c


def _yarn_range(rope: RopeConfig, head_size: int) -> tuple[float, float]:
    """Return the first and the last dimension of the ramp."""
    assert rope.original_max_position_embeddings is not None
    context = rope.original_max_position_embeddings

    def dimension(rotations: float) -> float:
        return (head_size * math.log(context / (rotations * 2 * math.pi))) / (
            2 * math.log(rope.theta)
        )

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    return (low, high) if low != high else (low, high + 0.001)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
