"""A speculator that knows the answers: it drafts the reference's tokens, with some errors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenmill.assembly import make_draft_model
from tokenmill.core import kinds
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.providers.speculation import Draft, ProposalBatch, ProposalRequest
from tokenmill.core.contract.registry import Registry
from tokenmill.core.interfaces import no_progress

from .reference import ReferenceCase

NAME = "foresight"
METHODS = ("ngram", NAME)
LENGTHS = tuple(range(1, 9))


class Foresight:
    """The plugin that offers it."""

    def __init__(self, cases: Sequence[ReferenceCase]) -> None:
        self._cases = cases

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(kinds.SPECULATIVE_METHOD, NAME, lambda: Foreseeing(self._cases))


class Foreseeing:
    """Drafts as many tokens as it is asked for, or fewer; each is right with that probability."""

    def __init__(self, cases: Sequence[ReferenceCase], accuracy: float = 0.6) -> None:
        self._answers = {case.prompt_token_ids: case.token_ids for case in cases}
        self._accuracy = accuracy
        self._rng = random.Random(0)

    @hookimpl
    def propose(self, batch: ProposalBatch) -> list[Draft]:
        return [Draft(token_ids=self._draft(request)) for request in batch.requests]

    def _draft(self, request: ProposalRequest) -> list[int]:
        prompt = tuple(request.token_ids[: request.num_prompt_tokens])
        begin = len(request.token_ids) - len(prompt)
        num_tokens = self._rng.randint(0, request.max_draft_tokens)
        right = self._answers[prompt][begin : begin + num_tokens]
        return [t if self._rng.random() < self._accuracy else (t + 1) % 100 for t in right]


def make_head(target: Path, output: Path, *, num_tokens: int, **recipe: Any) -> Path:
    """A draft head that was fitted to the model's own text, and not trained: right now and then."""
    config = EngineConfig(model=str(target), device="cpu", num_gpu_blocks_override=64 * 16)
    make_draft_model(config, output, no_progress, num_tokens=num_tokens, num_steps=0, **recipe)
    return output


def speculate(method: str, num_tokens: int) -> dict[str, Any]:
    """The engine's options: a fixed draft length, and for n-grams of short outputs the shortest
    that there are."""
    return {
        "speculative_method": method,
        "num_speculative_tokens": num_tokens,
        "speculative_adaptive": False,
        "speculative_config": {"prompt_lookup_min": 1} if method == "ngram" else None,
    }
