"""Requests with a lower `priority` go first; within one priority, the first come."""

from __future__ import annotations

from ...plugin import Registry, RequestView, hookimpl

TOKENMILL_API = (1, 1)


class Priority:
    """Orders waiting requests by priority, then arrival. The least urgent may wait for ever."""

    uses_priority = True

    def key(self, request: RequestView, now: float) -> tuple[float, ...]:
        return (request.priority, request.arrival_time)


@hookimpl
def register(registry: Registry) -> None:
    registry.scheduling_policy("priority", Priority)
