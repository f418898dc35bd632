"""Round robin: replicas take turns, whatever their load."""

from __future__ import annotations

from collections.abc import Sequence

from ...plugin import Registry, ReplicaView, RoutedRequest, hookimpl, kinds

TOKENMILL_API = (1, 1)


class RoundRobin:
    """Sends each request to the next replica that serves."""

    def __init__(self) -> None:
        self._last = -1

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> int:
        indexes = [replica.index for replica in replicas]
        self._last = next((index for index in indexes if index > self._last), indexes[0])
        return self._last

    def forget(self, index: int) -> None:
        pass


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.ROUTER, "round-robin", RoundRobin)
