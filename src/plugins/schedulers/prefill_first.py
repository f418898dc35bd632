"""Prefill first: prompts before decodes, the two never in one step.

The first token of a request comes as soon as it can, while running answers wait for the prompts of
others. The order of the first continuous-batching engines (Orca, Yu et al., OSDI 2022; early vLLM).
"""

from __future__ import annotations

from ...plugin import Registry, StepView, hookimpl

TOKENMILL_API = (1, 1)


class PrefillFirst:
    """Whole prompts; one longer than the budget alone, in successive chunks of the full budget."""

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
    registry.scheduler("prefill-first", PrefillFirst, aliases=("default",))
