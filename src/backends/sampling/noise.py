"""Counter-based noise: random numbers that depend only on a request's seed and a token's position.

A seeded request therefore gets the same tokens with any batch, chunking of its prompt, and
preemption. The mixer is splitmix64's finalizer (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014), applied twice, in wrapping int64.
"""

from __future__ import annotations

from enum import IntEnum

import torch


class Purpose(IntEnum):
    """The purpose of a random number. Numbers for two purposes are independent, even with the same
    seed and position.

    The value is XORed with the seed. It is a random bit pattern, so that one seed of a purpose is
    unlikely to equal another seed in use.
    """

    SAMPLE = 0
    """The token at that position, or the token that replaces a rejected draft."""
    ACCEPT = 0x632BE59BD9B4E019
    """Whether a draft is accepted."""
    DRAFT = 0x1F83D9ABFB41BD6B
    """The token that a draft model draws."""


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def uniform(
    seeds_r: torch.Tensor, positions_r: torch.Tensor, purpose: Purpose = Purpose.SAMPLE
) -> torch.Tensor:
    """Uniform float64 in (0, 1), never 0 or 1, one per row. Seeds and positions are int64."""
    if purpose:
        seeds_r = seeds_r ^ int(purpose)
    mixed_r = _mix(_mix(seeds_r) + positions_r * _GOLDEN)
    # 52 bits plus one half: with 53 bits the largest number would round to 1.
    return (_shift_right(mixed_r, 12).double() + 0.5) * 2.0**-52


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = x + _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift of int64: the sign bit is not copied."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
