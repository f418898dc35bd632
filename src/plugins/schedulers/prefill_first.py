"""Prefill first: prompts before decodes, and never both in one step.

First tokens come as early as possible, but running answers wait for the prompts of other requests.
The first engines with continuous batching did this (Orca, Yu et al., OSDI 2022; early vLLM).
"""

from __future__ import annotations

from ...plugin import Registry, StepView, hookimpl, kinds

TOKENMILL_API = (1, 1)


class PrefillFirst:
    """Whole prompts; a prompt longer than the budget runs alone, in chunks of the full budget."""

    decodes_all = True

    @hookimpl
    def schedule(self, step: StepView) -> None:
        for request in step.running:
            if not request.is_decoding:
                step.schedule(request)
        for request in step.waiting:
            fits = request.num_uncomputed_tokens <= step.budget or not step.num_granted
            if not fits or not step.schedule(request):
                break
        for request in () if step.num_granted else step.running:
            step.schedule(request)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(
        kinds.SCHEDULER,
        "prefill-first",
        PrefillFirst,
        aliases=("default",),
        switch=False,
    )
