"""No speculation: the engine asks for no drafts."""

from __future__ import annotations

from ...plugin import Draft, ProposalBatch, Registry, hookimpl, kinds

TOKENMILL_API = (1, 1)


class NoSpeculation:
    """Fills the slot where there is no speculation."""

    proposes = False

    @hookimpl
    def propose(self, batch: ProposalBatch) -> list[Draft]:
        return [Draft()] * len(batch.requests)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.SPECULATIVE_METHOD, "none", NoSpeculation)
