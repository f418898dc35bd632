"""Swap: the request that came last moves its KV blocks to host memory, and back when it resumes.

Nothing is computed twice, but it needs --swap-space and copies. Best for long contexts on a GPU. If
host memory is full, it falls back to recompute. Source: vLLM, Kwon et al., SOSP 2023.
"""

from __future__ import annotations

from ...plugin import PreemptionCandidate, Registry, RequestView, StepView, Victim, hookimpl, kinds

TOKENMILL_API = (1, 1)


class Swap:
    """Preempts the last candidate, which is the most junior one."""

    modes: tuple[str, ...] = ("swap", "recompute")

    @hookimpl
    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Victim:
        return Victim(request=candidates[-1].request, mode="swap")


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.PREEMPTION_MODE, "swap", Swap)
