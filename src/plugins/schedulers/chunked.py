"""Chunked prefill: decodes first; the rest of the step's budget goes to prompts, in chunks.

Running answers never wait for a prompt, so tokens come at even intervals. The first token of a
prompt may come a little later. Source: Sarathi-Serve, Agrawal et al., OSDI 2024.
"""

from __future__ import annotations

from ...plugin import Registry, StepView, decode_first, hookimpl, kinds

TOKENMILL_API = (1, 1)


class Chunked:
    """Decodes, then prompts in progress, then waiting requests, until the budget is spent."""

    @hookimpl
    def schedule(self, step: StepView) -> None:
        decode_first(step)  # the engine's own fallback is this very policy


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.SCHEDULER, "chunked", Chunked, switch=True)
