"""Swap: the request that came last moves its KV blocks to host memory, and back in its turn.

Nothing is computed twice, at the price of --swap-space and of the copies: best for long contexts on
a GPU. Without room in host memory it falls back to recompute. (As in vLLM, Kwon et al., SOSP 2023.)
"""

from __future__ import annotations

from ...plugin import PreemptionCandidate, Registry, RequestView, StepView, Victim, hookimpl

TOKENMILL_API = (1, 1)


class Swap:
    """The last candidate, which is the most junior one."""

    modes: tuple[str, ...] = ("swap", "recompute")

    @hookimpl
    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Victim:
        return Victim(request=candidates[-1].request, mode="swap")


@hookimpl
def register(registry: Registry) -> None:
    registry.preemption_mode("swap", Swap)
