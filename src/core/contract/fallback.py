"""The built-in decisions that take over when a policy plugin fails."""

from __future__ import annotations

from collections.abc import Sequence

from .policy import PreemptionCandidate, StepView, Victim


def decode_first(step: StepView) -> None:
    """Schedule decodes, then prompts in progress, then waiting requests while there is room."""
    for request in sorted(step.running, key=lambda request: not request.is_decoding):
        step.schedule(request)
    for request in step.waiting:
        if not step.schedule(request):
            break


def last_come(candidates: Sequence[PreemptionCandidate]) -> Victim:
    """Choose the most junior candidate; its tokens are recomputed later."""
    return Victim(request=candidates[-1].request, mode="recompute")
