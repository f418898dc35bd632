"""The preemption mode and its options. The unit of costs is the time to compute one token."""

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from tokenmill.plugin import PreemptionCandidate, RequestView, StepView, Victim, hookimpl


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAwareOptions:
    """Options of the table [preemption_mode]. Both values depend on the machine: measure them."""

    swap_overhead: Annotated[float, Meta(ge=0)] = field(
        default=256.0,
        metadata={"help": "fixed cost of a swap, in tokens that could be computed in this time"},
    )
    swap_speedup: Annotated[float, Meta(gt=0)] = field(
        default=8.0,
        metadata={"help": "time to compute a token, divided by the time to swap it out and in"},
    )


class CostAware:
    """Preempts the request whose blocks are cheapest to restore, in the cheaper mode."""

    modes: tuple[str, ...] = ("recompute", "swap")

    def __init__(self, options: CostAwareOptions) -> None:
        self._options = options

    @hookimpl
    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Victim:
        # Candidates are ordered by seniority; among equals, the most junior one is preempted.
        cheapest = min(reversed(candidates), key=self._cost_per_block).request
        swaps = self._swap_cost(cheapest) < cheapest.num_computed_tokens
        return Victim(request=cheapest, mode="swap" if swaps else "recompute")

    def _cost_per_block(self, candidate: PreemptionCandidate) -> float:
        request = candidate.request
        cost = min(request.num_computed_tokens, self._swap_cost(request))
        return cost / candidate.num_freed_blocks if candidate.num_freed_blocks else float("inf")

    def _swap_cost(self, request: RequestView) -> float:
        return (
            self._options.swap_overhead + request.num_computed_tokens / self._options.swap_speedup
        )
