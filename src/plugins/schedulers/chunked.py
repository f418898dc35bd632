"""Chunked prefill: decodes first; the rest of the step's budget goes to prompts, in chunks.

Running answers never wait for a prompt, so tokens come at even intervals. The first token of a
prompt may come a little later. Source: Sarathi-Serve, Agrawal et al., OSDI 2024.
"""

from __future__ import annotations

from ...plugin import Registry, StepView, hookimpl, kinds

TOKENMILL_API = (1, 1)


class Chunked:
    """Decodes, then prompts in progress, then waiting requests, until the budget is spent."""

    decodes_all = True

    @hookimpl
    def schedule(self, step: StepView) -> None:
        for request in sorted(step.running, key=lambda request: not request.is_decoding):
            step.schedule(request)
        for request in step.waiting:
            if not step.schedule(request):
                break  # a later one must not overtake it


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.SCHEDULER, "chunked", Chunked, switch=True)
