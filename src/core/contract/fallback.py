"""The built-in decisions that take over when a policy plugin fails."""

from __future__ import annotations

from collections.abc import Sequence

from .policy import PreemptionCandidate, StepView, Victim


def decode_first(step: StepView) -> None:
    """Schedule decodes, then prompts in progress, then waiting requests, until the budget is spent.

    No decode waits for a prompt. Source: chunked prefill of Sarathi-Serve, Agrawal et al.,
    OSDI 2024.
    """
    prompts = []
    for request in step.running:
        if request.is_decoding:
            step.schedule(request)
        else:
            prompts.append(request)
    for request in prompts:
        step.schedule(request)
    for request in step.waiting:
        if not step.schedule(request):
            break


def last_come(candidates: Sequence[PreemptionCandidate]) -> Victim:
    """Choose the most junior candidate; its tokens are recomputed later."""
    return Victim(request=candidates[-1].request, mode="recompute")
