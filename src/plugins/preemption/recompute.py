"""Recompute: the request that came last gives up its KV blocks and computes its tokens again later.

It goes back to the front of the queue. Nothing is copied, and no other memory is needed. vLLM
preempts in the same order.
"""

from __future__ import annotations

from ...plugin import (
    PreemptionCandidate,
    Registry,
    RequestView,
    StepView,
    Victim,
    hookimpl,
    kinds,
)

TOKENMILL_API = (1, 1)


class Recompute:
    """Preempts the last candidate, which is the most junior one."""

    modes: tuple[str, ...] = ("recompute",)

    @hookimpl
    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Victim:
        return Victim(request=candidates[-1].request, mode="recompute")


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.PREEMPTION_MODE, "recompute", Recompute)
