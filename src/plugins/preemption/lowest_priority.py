"""Lowest priority: the least urgent request gives up its KV blocks, whoever came last.

With --scheduling-policy priority this is what `recompute` does, too, since rank begins with the
priority; it differs in preferring, among equals, the one that frees the most blocks, so that fewer
requests are disturbed.
"""

from __future__ import annotations

from ...plugin import PreemptionCandidate, Registry, RequestView, StepView, Victim, hookimpl

TOKENMILL_API = (1, 1)


class LowestPriority:
    """The least urgent candidate; of equals the one that frees the most blocks, then the last."""

    modes: tuple[str, ...] = ("recompute",)

    @hookimpl
    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Victim:
        chosen = max(reversed(candidates), key=lambda c: (c.request.priority, c.num_freed_blocks))
        return Victim(request=chosen.request, mode="recompute")


@hookimpl
def register(registry: Registry) -> None:
    registry.preemption_mode("lowest-priority", LowestPriority)
