"""The configuration of rotary position embeddings, independent of the file's format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from ....core.errors import ConfigError


class RopeScaling(StrEnum):
    """Methods to stretch rotary frequencies for a longer context; transformers' `rope_type`."""

    NONE = "none"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    """Frequencies change only beyond `max_position_embeddings`. Longer sequences are not served:
    their frequencies would depend on the longest sequence of a step."""
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"
    """Frequencies have one list of divisors up to the original context, and another beyond it."""


_OF_ORIGINAL_CONTEXT = (RopeScaling.LLAMA3, RopeScaling.YARN, RopeScaling.LONGROPE)

_MAX_FACTOR = 1 << 20
"""Models have far smaller factors. A larger one would give an absurd maximum length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embeddings; each kind of scaling uses some of the fields."""

    theta: float = 10000.0
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    """Context length before scaling (llama3, yarn, longrope)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    """yarn, longrope: factor of cos and sin. None: the paper's value."""
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factors: tuple[float, ...] = ()
    """longrope: divisor of each frequency when the context is at most the original one."""
    long_factors: tuple[float, ...] = ()
    """longrope: divisor of each frequency for longer contexts."""
    frequency_divisors: tuple[float, ...] | None = None
    """Divisor of each frequency: GGUF files contain llama3's scaling in this form."""
    sections: tuple[int, ...] = ()
    """The numbers of frequencies that rotate by a token's frame, row and column, in this order. See
    MediaPlace.grid. The three positions of a token of text are equal. Empty: a token has one
    position."""

    def __post_init__(self) -> None:
        if self.theta <= 0 or not 0 < self.factor <= _MAX_FACTOR:
            raise ConfigError(
                f"rotary theta and factor must be positive, got {self.theta} and {self.factor}; "
                f"the factor must be at most {_MAX_FACTOR}"
            )
        if self.scaling in _OF_ORIGINAL_CONTEXT:
            if (self.original_max_position_embeddings or 0) < 2:
                raise ConfigError(
                    f"{self.scaling} needs original_max_position_embeddings of at least 2"
                )
            if not 0 < self.low_freq_factor < self.high_freq_factor:
                raise ConfigError(
                    "llama3 needs a positive low_freq_factor, and high_freq_factor above it"
                )
        if self.scaling is RopeScaling.YARN:
            self._check_yarn()
        for divisors in (self.short_factors, self.long_factors, self.frequency_divisors or ()):
            if not all(0 < divisor < math.inf for divisor in divisors):  # nor NaN
                raise ConfigError(
                    f"divisors of rotary frequencies must be positive and finite: {divisors!s:.80}"
                )

    def _check_yarn(self) -> None:
        """Raise ConfigError for numbers of which YaRN cannot take logarithms, or divide by them."""
        if self.theta <= 1:
            raise ConfigError(f"yarn needs a rotary theta above 1, got {self.theta}")
        if not all(
            1 / _MAX_FACTOR <= beta <= _MAX_FACTOR for beta in (self.beta_fast, self.beta_slow)
        ):
            raise ConfigError(
                f"yarn needs beta_fast and beta_slow between 2^-20 and 2^20, got {self.beta_fast} "
                f"and {self.beta_slow}"
            )
        if min(self.mscale or 0, self.mscale_all_dim or 0) < 0:
            raise ConfigError(
                f"yarn needs mscale and mscale_all_dim that are not negative, got {self.mscale} "
                f"and {self.mscale_all_dim}"
            )

    def check_size(self, num_frequencies: int) -> None:
        """Raise ConfigError unless each list of divisors is empty or has one per frequency."""
        lists = {
            "short_factor": self.short_factors,
            "long_factor": self.long_factors,
            "divisors of frequencies": self.frequency_divisors or (),
        }
        needed = ("short_factor", "long_factor") if self.scaling is RopeScaling.LONGROPE else ()
        for name, divisors in lists.items():
            if (divisors or name in needed) and len(divisors) != num_frequencies:
                raise ConfigError(
                    f"rotary embeddings need {num_frequencies} numbers in {name}, "
                    f"got {len(divisors)}"
                )
        if self.sections and (
            len(self.sections) != 3
            or min(self.sections) < 0
            or sum(self.sections) != num_frequencies
        ):
            raise ConfigError(
                f"mrope_section needs 3 numbers whose sum is {num_frequencies}, got "
                f"{list(self.sections)!s:.80}"
            )


def stretched_context(rope: RopeConfig, max_position_embeddings: int) -> int:
    """Return the maximum sequence length: files with YaRN often state the length without it."""
    if rope.scaling is not RopeScaling.YARN or rope.original_max_position_embeddings is None:
        return max_position_embeddings
    return max(max_position_embeddings, int(rope.original_max_position_embeddings * rope.factor))
