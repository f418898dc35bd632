"""Session affinity: all requests of a session go to one replica."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ...plugin import Registry, ReplicaView, RoutedRequest, hookimpl, kinds, least_loaded

TOKENMILL_API = (1, 1)


class SessionAffinity:
    """Sends all requests with the same session id to the same replica, as long as it serves.
    Requests without a session id go to the replica with the fewest requests.

    It uses rendezvous hashing (Thaler and Ravishankar, 1998): when a replica is lost, only its own
    sessions move, and they move back when it serves again.
    """

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> int:
        if request.options.session_id is None:
            return least_loaded(replicas)
        session = request.options.session_id
        return max((replica.index for replica in replicas), key=lambda i: _weight(session, i))

    def forget(self, index: int) -> None:
        pass


def _weight(session: str, index: int) -> bytes:
    return hashlib.sha256(f"{index}/{session}".encode("utf-8", "surrogatepass")).digest()


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.ROUTER, "session", SessionAffinity)
