"""The settings and the outcome of one life."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Self

from ...core.contract.providers.speculation import SpeculationLimits
from ...core.engine.step import StepLimits
from ...core.kv_memory import longest_sequence
from ...core.requests.media import MediaItem
from ..simulated.drafting import DraftingSettings
from ..simulated.pictures import BYTES_PER_TOKEN

MEDIA_SEEDS = 1_000_000
"""From this seed on, prompts have images."""
ENOUGH_TOKENS = 1000
"""More tokens than any request of a life has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An item that prompts of a life may have."""

    digest: bytes
    num_tokens: int
    cost: int
    pixels: bytes
    is_whole: bool
    """Whether its tokens are a span."""

    def at(self, start: int) -> MediaItem:
        """The item at a place in a prompt."""
        return MediaItem(
            digest=self.digest,
            start=start,
            num_tokens=self.num_tokens,
            cost=self.cost,
            shape=(),
            pixels=self.pixels,
            is_whole=self.is_whole,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeSettings:
    """Sizes, policies and faults of one life."""

    scheduler: str
    """Name of the scheduler; "wild" makes every mistake that it can."""
    preemption_mode: str
    scheduling_policy: str
    block_size: int
    num_blocks: int
    num_host_blocks: int
    max_inflight: int
    """Maximum number of plans in flight with one stage."""
    num_requests: int
    fault_rate: float
    """Probability of each kind of fault, at each place where it can occur."""
    limits: StepLimits
    drafting: DraftingSettings | None = None
    """The simulated speculator; None for no drafts."""
    kv_windows: tuple[int | None, ...] = (None,)
    """See `ModelInfo.kv_windows`."""
    num_stages: int = 1
    """See `ModelInfo.num_stages`."""
    pictures: tuple[Picture, ...] = ()
    media_bytes: int = 0
    """Size of the encoder cache; it holds each picture."""

    @classmethod
    def of_seed(cls, seed: int) -> Self:
        """The settings of a seed. Prompts have images from MEDIA_SEEDS on."""
        found = cls.draw(random.Random(seed))
        if seed < MEDIA_SEEDS:
            return found
        rng = random.Random(f"pictures {seed}")
        pictures = _draw_pictures(rng)
        largest = max(one.num_tokens for one in pictures) * BYTES_PER_TOKEN
        span = max((one.num_tokens for one in pictures if one.is_whole), default=0)
        limits = found.limits
        budget = limits.max_num_batched_tokens
        if span:  # the engine's start refuses less
            needed = span + limits.max_num_seqs
            budget = rng.choice([needed, max(needed, budget)])
        return replace(
            found,
            pictures=pictures,
            media_bytes=int(largest * rng.choice([1, 1.5, 2, 8])),
            limits=replace(limits, max_num_batched_tokens=budget),
        )

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        """Random settings without images. Pools are small, so that requests compete for blocks."""
        block_size = rng.choice([1, 2, 4, 8])
        return cls(
            scheduler=rng.choice(["chunked", "prefill-first", "wild"]),
            preemption_mode=rng.choice(["recompute", "swap", "lowest-priority", "wild"]),
            scheduling_policy=rng.choice(["priority", "wild"]),
            block_size=block_size,
            num_blocks=rng.randint(4, 64 if block_size < 4 else 32),
            num_host_blocks=rng.choice([0, 0, 2, 8, 64]),
            max_inflight=rng.choice([1, 2]),
            num_requests=rng.randint(3, 25),
            fault_rate=rng.choice([0.0, 0.02]),
            limits=StepLimits(
                max_num_seqs=rng.randint(1, 16),
                max_num_batched_tokens=rng.randint(4, 64),
                long_prefill_token_threshold=rng.choice([0, 5]),
                watermark_blocks=rng.choice([0, 1]),
                enable_prefix_caching=rng.random() < 0.7,
            ),
            drafting=_draw_drafting(rng),
            kv_windows=_draw_windows(rng),
            num_stages=rng.choice([1, 1, 2, 3, 4]),
        )

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a request that the KV cache allows."""
        return longest_sequence(
            ENOUGH_TOKENS,
            self.num_blocks,
            block_size=self.block_size,
            windows=self.kv_windows,
            step_tokens=self.limits.max_num_batched_tokens,
        )


def _draw_windows(rng: random.Random) -> tuple[int | None, ...]:
    """One group without or with a window, or several groups of layers that differ."""
    window, other = rng.randint(1, 24), rng.randint(1, 24)
    groups = [(None,), (None,), (window,), (None, window), (None, window, window), (other, window)]
    return rng.choice(groups)


def _draw_pictures(rng: random.Random) -> tuple[Picture, ...]:
    """A few pictures, of which some are equally large."""
    sizes = [rng.randint(1, 6) for _ in range(rng.randint(1, 3))]
    return tuple(
        Picture(
            digest=number.to_bytes(32, "big"),
            num_tokens=rng.choice(sizes),
            cost=rng.choice([1, 3, 10, 100]),
            pixels=number.to_bytes(4, "big"),
            is_whole=rng.random() < 0.5,
        )
        for number in range(rng.randint(2, 6))
    )


def _draw_drafting(rng: random.Random) -> DraftingSettings | None:
    num_tokens = rng.choice([0, 0, 1, 2, 3, 4, 5, 6, 7, 8])
    if not num_tokens:
        return None
    draft_length = ("adaptive", "fixed", "wild")[int(3 * rng.random())]
    return DraftingSettings(
        limits=SpeculationLimits(
            num_speculative_tokens=num_tokens, needs_lookahead=rng.random() < 0.5
        ),
        draft_length=draft_length,
        seed=rng.randrange(2**32),
        accuracy=rng.choice([0.0, 0.3, 0.8, 0.95]),
        eagerness=rng.choice([0.2, 0.9, 1.0]),
    )


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Counts of events in one life, or in several."""

    num_seeds: int = 0
    num_requests: int = 0
    num_tokens: int = 0
    num_turns: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    """Preemptions that copied the blocks to the host."""
    num_passed_grants: int = 0
    """Grants of requests that no longer have their first blocks."""
    num_hit_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    num_failed_steps: int = 0
    """Steps that raised, and steps whose results were lost."""
    num_lost_results: int = 0
    num_overtakings: int = 0
    """Results and errors that arrived before those of an earlier step."""
    num_plugin_failures: int = 0
    num_draft_tokens: int = 0
    """Verified draft tokens, of all requests."""
    num_accepted_tokens: int = 0
    num_item_queries: int = 0
    num_item_hits: int = 0
    """Items that grants needed, and those of them that were encoded already."""
    num_spans: int = 0
    """Items that a grant computed whole, because their tokens see each other."""

    def add(self, other: Outcome) -> None:
        """Add the counts of another outcome."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
