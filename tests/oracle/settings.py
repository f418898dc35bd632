"""The ways to serve that the comparison with transformers goes through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

SCHEDULERS = ("chunked", "prefill-first")
MODES = ("recompute", "swap")
BLOCK_SIZES = (8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to serve the prompts."""

    scheduler: str
    preemption_mode: str = "recompute"
    enable_prefix_caching: bool = True
    block_size: int = 16
    is_starved: bool = False
    max_num_batched_tokens: int = 1024

    @property
    def swaps(self) -> bool:
        """Whether blocks must have gone to the host and back."""
        return self.is_starved and self.preemption_mode == "swap"

    def options(self) -> dict[str, Any]:
        """The engine's options but for the size of the KV cache."""
        return {
            "dtype": "float32",
            "scheduler": self.scheduler,
            "preemption_mode": self.preemption_mode,
            "enable_prefix_caching": self.enable_prefix_caching,
            "block_size": self.block_size,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "watermark": 0.0,
        }

    def __str__(self) -> str:
        words = [self.scheduler, self.preemption_mode]
        words += ["cached" if self.enable_prefix_caching else "uncached"]
        words += ["starved" if self.is_starved else "ample", f"blocks-of-{self.block_size}"]
        return "-".join([*words, f"steps-of-{self.max_num_batched_tokens}"])


def full_product(*budgets: int, block_sizes: Sequence[int] = BLOCK_SIZES) -> list[Setting]:
    """Scheduler x preemption mode x prefix cache x block size x pool x tokens per step."""
    axes = product(SCHEDULERS, MODES, (True, False), block_sizes, (True, False), budgets)
    return [
        Setting(
            scheduler=scheduler,
            preemption_mode=mode,
            enable_prefix_caching=caches,
            block_size=block_size,
            is_starved=is_starved,
            max_num_batched_tokens=budget,
        )
        for scheduler, mode, caches, block_size, is_starved, budget in axes
    ]


def few_settings(small_step: int) -> list[Setting]:
    """Chunks of `small_step` tokens, and two ways to serve with too little memory."""
    return [
        Setting(scheduler="chunked", max_num_batched_tokens=small_step, block_size=8),
        Setting(scheduler="prefill-first", preemption_mode="swap", is_starved=True),
        Setting(scheduler="chunked", enable_prefix_caching=False, is_starved=True, block_size=8),
    ]


def alternating_product(whole: int, chunks: int) -> list[Setting]:
    """The product without the last axis: whole and chunked prefill take turns instead, so that any
    four choices still meet."""
    pairs = zip(full_product(whole), full_product(chunks), strict=True)
    return [pair[_parity(pair[0])] for pair in pairs]


def _parity(setting: Setting) -> int:
    """Of the choices' numbers: it changes with every single choice."""
    number = SCHEDULERS.index(setting.scheduler) + MODES.index(setting.preemption_mode)
    number += BLOCK_SIZES.index(setting.block_size)
    return (number + setting.enable_prefix_caching + setting.is_starved) % 2
