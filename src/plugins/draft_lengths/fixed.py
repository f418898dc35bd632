"""Fixed draft length: --num-speculative-tokens, for every request in every step."""

from __future__ import annotations

from collections.abc import Sequence

from ...plugin import DraftedStep, Registry, RequestView, SpeculationLimits, hookimpl, kinds

TOKENMILL_API = (1, 1)


class FixedDraftLength:
    """Always asks for the maximum number of tokens."""

    def choose(self, requests: Sequence[RequestView], limits: SpeculationLimits) -> Sequence[int]:
        return [limits.num_speculative_tokens] * len(requests)

    def observe(self, step: DraftedStep) -> None:
        pass

    def forget(self, engine_id: str) -> None:
        pass


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.DRAFT_LENGTH, "fixed", FixedDraftLength, switch=False)
