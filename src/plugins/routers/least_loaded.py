"""Least loaded: the replica with the fewest requests."""

from __future__ import annotations

from collections.abc import Sequence

from ...plugin import Registry, ReplicaView, RoutedRequest, hookimpl, kinds, least_loaded

TOKENMILL_API = (1, 1)


class LeastLoaded:
    """Sends each request to the replica with the fewest requests."""

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> int:
        return least_loaded(replicas)

    def forget(self, index: int) -> None:
        pass


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.ROUTER, "least-loaded", LeastLoaded)
