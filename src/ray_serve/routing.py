"""Chooses replicas: requests with the same beginning go to the same one."""

from __future__ import annotations

import hashlib

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from .known import note_router

SLACK = 4
"""Open requests that a replica may have more than another one."""
ONLY = "only:"
"""Beginning of a session id that names the one replica which is to answer."""
NOT = "not:"
"""Beginning of a session id that names the replica which is to answer only if it is the last."""


class PrefixRouter(RequestRouter):
    """Sends requests with the same session id to the same replica, while it is not too busy.

    The front sets the id, from the beginning of the request.
    """

    queue_len_response_deadline_s = 1.0  # after Serve's 0.1 s, a busy one would be passed over

    def initialize_state(self) -> None:
        """Called when the router is made."""
        note_router(self)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which they are asked to take a request."""
        session = pending_request.metadata.session_id
        num_open = {one: self.replica_queue_len_cache.get(one) or 0 for one in self.curr_replicas}

        def rank(replica: RunningReplica) -> tuple[bool, bool, bool, bytes]:
            name = replica.replica_id.unique_id
            is_busy = num_open[replica.replica_id] > min(num_open.values()) + SLACK
            digest = hashlib.sha256(f"{name}{session}".encode()).digest()
            return session != ONLY + name, session == NOT + name, is_busy, digest

        return [[replica] for replica in sorted(candidate_replicas, key=rank)]
