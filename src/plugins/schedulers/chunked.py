"""Chunked prefill: decodes first, then prompts in chunks into what is left of the step's budget.

No running answer ever waits for a prompt, so the time between tokens stays even; a prompt's first
token may come a little later. (Sarathi-Serve, Agrawal et al., OSDI 2024.)
"""

from __future__ import annotations

from ...plugin import Registry, StepView, decode_first, hookimpl

TOKENMILL_API = (1, 1)


class Chunked:
    """Decodes, then prompts in progress, then waiting requests, until the budget is spent."""

    @hookimpl
    def schedule(self, step: StepView) -> None:
        decode_first(step)  # the engine's own fallback is this very policy


@hookimpl
def register(registry: Registry) -> None:
    registry.scheduler("chunked", Chunked)
