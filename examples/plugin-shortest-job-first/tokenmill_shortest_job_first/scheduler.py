"""The scheduler and its options."""

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from tokenmill.plugin import RequestView, StepView, hookimpl


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestJobFirstOptions:
    """Options of the table [scheduler]."""

    ageing: Annotated[float, Meta(ge=0)] = field(
        default=100.0,
        metadata={
            "help": "tokens of work that equal one second of waiting; 0: long jobs may starve"
        },
    )


class ShortestJobFirst:
    """Least work first: tokens not computed yet, and tokens that may still be generated."""

    def __init__(self, options: ShortestJobFirstOptions) -> None:
        self._ageing = options.ageing

    @hookimpl
    def schedule(self, step: StepView) -> None:
        """Grant tokens to the running requests first, then start waiting ones with the rest."""
        for request in sorted(step.running, key=lambda r: self._work(r, step.now)):
            step.schedule(request)
        for request in sorted(step.waiting, key=lambda r: self._turn(r, step.now)):
            if not step.schedule(request):
                break  # no room for this request: later ones must not overtake it

    def _turn(self, request: RequestView, now: float) -> tuple[bool, float]:
        """Preempted requests come back first: see `SchedulingPolicy`."""
        return request.num_preemptions == 0, self._work(request, now)

    def _work(self, request: RequestView, now: float) -> float:
        generated = request.num_tokens - request.num_prompt_tokens
        to_compute = request.num_tokens - request.num_computed_tokens
        to_generate = request.max_tokens - generated
        return to_compute + to_generate - self._ageing * (now - request.arrival_time)
