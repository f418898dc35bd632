"""Lowest priority: the least urgent request gives up its KV blocks, whatever its time of arrival.

With --scheduling-policy priority, `recompute` also preempts by priority. The difference: among
requests of equal priority this mode chooses the one that frees the most blocks, so fewer requests
are preempted.
"""

from __future__ import annotations

from ...plugin import PreemptionCandidate, Registry, RequestView, StepView, Victim, hookimpl, kinds

TOKENMILL_API = (1, 1)


class LowestPriority:
    """Preempts the least urgent candidate; among equals the one that frees most blocks, then the
    last one."""

    modes: tuple[str, ...] = ("recompute",)

    @hookimpl
    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Victim:
        chosen = max(reversed(candidates), key=lambda c: (c.request.priority, c.num_freed_blocks))
        return Victim(request=chosen.request, mode="recompute")


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.PREEMPTION_MODE, "lowest-priority", LowestPriority)
