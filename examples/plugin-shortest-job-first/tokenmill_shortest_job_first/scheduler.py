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
            "help": "tokens of work that a second of waiting outweighs; 0: long ones may starve"
        },
    )


class ShortestJobFirst:
    """Least work first: tokens not computed yet, and tokens that may still be generated."""

    def __init__(self, options: ShortestJobFirstOptions) -> None:
        self._ageing = options.ageing

    @hookimpl
    def schedule(self, step: StepView) -> None:
        """Those that run share the step first, then others start in what is left of it."""
        for request in sorted(step.running, key=lambda r: self._work(r, step.now)):
            step.schedule(request)
        for request in sorted(step.waiting, key=lambda r: self._turn(r, step.now)):
            if not step.schedule(request):
                break  # no room for this one: nobody overtakes it

    def _turn(self, request: RequestView, now: float) -> tuple[bool, float]:
        """Who was preempted comes back before anybody new starts; the engine insists on that."""
        return request.num_preemptions == 0, self._work(request, now)

    def _work(self, request: RequestView, now: float) -> float:
        generated = request.num_tokens - request.num_prompt_tokens
        to_compute = request.num_tokens - request.num_computed_tokens
        to_generate = request.max_tokens - generated
        return to_compute + to_generate - self._ageing * (now - request.arrival_time)
