"""Drafts for the simulated executor: right or wrong by chance, short or long, sometimes none."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...core.contract.speculation import SpeculationLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingSettings:
    """How a simulated speculator behaves."""

    limits: SpeculationLimits
    draft_length: str = "adaptive"
    """Name of the policy that chooses how many tokens are drafted."""
    seed: int = 0
    accuracy: float = 0.7
    """Probability that a proposed token is the right one, if those before it are."""
    eagerness: float = 1.0
    """Probability that it proposes anything when it is asked."""

    @classmethod
    def like_ngram(
        cls, num_tokens: int, *, draft_length: str = "adaptive", seed: int = 0
    ) -> DraftingSettings:
        """Often nothing; what it finds is mostly right; needs no KV."""
        limits = SpeculationLimits(num_speculative_tokens=num_tokens)
        return cls(
            limits=limits, draft_length=draft_length, seed=seed, accuracy=0.85, eagerness=0.4
        )

    @classmethod
    def like_draft_model(
        cls, num_tokens: int, *, draft_length: str = "adaptive", seed: int = 0
    ) -> DraftingSettings:
        """Always something, often wrong; writes KV of its own behind the last token."""
        limits = SpeculationLimits(num_speculative_tokens=num_tokens, needs_lookahead=True)
        return cls(limits=limits, draft_length=draft_length, seed=seed, accuracy=0.6)


class SimulatedDrafting:
    """Proposes what `next_token` would say, with errors."""

    def __init__(
        self,
        settings: DraftingSettings,
        next_token: Callable[[Sequence[int], int], int],
        vocab_size: int,
    ) -> None:
        """`next_token` takes all tokens so far and the request's seed."""
        self.settings = settings
        self._rng = random.Random(f"drafts {settings.seed}")
        self._next_token = next_token
        self._vocab_size = vocab_size

    def propose(self, token_ids: Sequence[int], seed: int, max_tokens: int) -> tuple[int, ...]:
        """Up to `max_tokens` tokens that may follow."""
        rng = self._rng
        if not max_tokens or rng.random() >= self.settings.eagerness:
            return ()
        history = list(token_ids)
        for _ in range(rng.randint(1, max_tokens)):
            token = self._next_token(history, seed)
            is_right = rng.random() < self.settings.accuracy
            history.append(token if is_right else (token + 1) % self._vocab_size)
        return tuple(history[len(token_ids) :])
