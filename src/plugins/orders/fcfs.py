"""First come, first served: no request can starve."""

from __future__ import annotations

from ...plugin import Registry, RequestView, hookimpl, kinds

TOKENMILL_API = (1, 1)


class FirstComeFirstServed:
    """Orders waiting requests by their arrival."""

    uses_priority = False

    def key(self, request: RequestView, now: float) -> tuple[float, ...]:
        return (request.arrival_time,)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.SCHEDULING_POLICY, "fcfs", FirstComeFirstServed)
