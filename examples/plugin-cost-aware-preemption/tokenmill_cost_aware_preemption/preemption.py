"""The preemption mode and its options. All costs are in tokens that could be computed meanwhile."""

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from tokenmill.plugin import PreemptionCandidate, RequestView, StepView, Victim, hookimpl


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAwareOptions:
    """Options of the table [preemption_mode]. Measure both on the machine at hand."""

    swap_overhead: Annotated[float, Meta(ge=0)] = field(
        default=256.0,
        metadata={"help": "tokens that are computed in the time that starting a swap takes"},
    )
    swap_speedup: Annotated[float, Meta(gt=0)] = field(
        default=8.0,
        metadata={"help": "how many times faster a token is swapped out and in than computed"},
    )


class CostAware:
    """Of the candidates, the one whose blocks are cheapest to get back, in the cheaper mode."""

    modes: tuple[str, ...] = ("recompute", "swap")

    def __init__(self, options: CostAwareOptions) -> None:
        self._options = options

    @hookimpl
    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Victim:
        # Candidates come most senior first: among equals the last one goes, as it always did.
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
