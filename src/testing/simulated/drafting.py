"""A simulated speculator: its drafts are right or wrong, short or long, or empty, at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...core.contract.providers.speculation import SpeculationLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingSettings:
    """The behaviour of a simulated speculator."""

    limits: SpeculationLimits
    draft_length: str = "adaptive"
    """Name of the draft length policy."""
    seed: int = 0
    accuracy: float = 0.7
    """Probability that a draft token is right, given that those before it are."""
    eagerness: float = 1.0
    """Probability that a call returns a draft at all."""

    @classmethod
    def like_ngram(
        cls, num_tokens: int, *, draft_length: str = "adaptive", seed: int = 0
    ) -> DraftingSettings:
        """Settings like the n-gram method: often no draft, mostly right, without KV slots."""
        limits = SpeculationLimits(num_speculative_tokens=num_tokens)
        return cls(
            limits=limits, draft_length=draft_length, seed=seed, accuracy=0.85, eagerness=0.4
        )

    @classmethod
    def like_draft_model(
        cls, num_tokens: int, *, draft_length: str = "adaptive", seed: int = 0
    ) -> DraftingSettings:
        """Settings like a draft model: always a draft, often wrong, with KV slots of its own."""
        limits = SpeculationLimits(num_speculative_tokens=num_tokens, needs_lookahead=True)
        return cls(limits=limits, draft_length=draft_length, seed=seed, accuracy=0.6)


class SimulatedDrafting:
    """Proposes the tokens that `next_token` returns, with random errors."""

    def __init__(
        self,
        settings: DraftingSettings,
        next_token: Callable[[Sequence[int], int], int],
        vocab_size: int,
    ) -> None:
        """`next_token` takes all tokens so far and the request's seed."""
        self.settings = settings
        self._next_token = next_token
        self._vocab_size = vocab_size

    def propose(self, token_ids: Sequence[int], seed: int, max_tokens: int) -> tuple[int, ...]:
        """A draft of at most `max_tokens` tokens, or none. Each stage of a model makes the same."""
        rng = random.Random(hash((self.settings.seed, seed, len(token_ids))))
        if not max_tokens or rng.random() >= self.settings.eagerness:
            return ()
        history = list(token_ids)
        for _ in range(rng.randint(1, max_tokens)):
            token = self._next_token(history, seed)
            is_right = rng.random() < self.settings.accuracy
            history.append(token if is_right else (token + 1) % self._vocab_size)
        return tuple(history[len(token_ids) :])
