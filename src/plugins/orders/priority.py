"""Requests with a lower `priority` go first; requests of equal priority go in order of arrival."""

from __future__ import annotations

from ...plugin import Registry, RequestView, hookimpl, kinds

TOKENMILL_API = (1, 1)


class Priority:
    """Orders waiting requests by priority, then arrival. The least urgent ones can starve."""

    uses_priority = True

    def key(self, request: RequestView, now: float) -> tuple[float, ...]:
        return (request.priority, request.arrival_time)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.SCHEDULING_POLICY, "priority", Priority)
