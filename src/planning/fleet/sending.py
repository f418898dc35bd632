"""Sends requests to replicas with a router plugin, by the rules of `core.supervised.sending`."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from ...core.config import EngineConfig
from ...core.contract.providers.routing import ReplicaView
from ...core.errors import (
    InvalidRequestError,
    OverloadedError,
    RateLimitedError,
    RequestFailedError,
    TokenmillError,
)
from ...core.host.routing import build_router
from ...core.supervised.routing import Routed
from ...core.supervised.sending import MAX_ENGINES
from ..virtual_engine import REFUSALS
from ..workload import PlannedRequest
from .replica import Client, Replica
from .tally import Tally

NO_REPLICA = "no replica serves"
LOST = "replica lost"


class Sender:
    """The replicas that serve, and the router that chooses one of them for each request."""

    def __init__(self, config: EngineConfig, tally: Tally, examples: dict[str, str]) -> None:
        """`examples`: gets the first error message of each reason.

        Raises PluginError or ConfigError for a router that cannot be built.
        """
        self._examples = examples
        self.router = build_router(config)
        self._config = config
        self._tally = tally
        self.serving: list[Replica] = []
        """In order of their index."""
        self._views: list[ReplicaView] = []
        self._places: dict[int, int] | None = None
        """Index in `serving` by the replica's index; None if it must be made again."""
        self._changed: set[Replica] = set()
        self.before_submit: Callable[[Replica], None] = lambda replica: None
        """Called before a live replica gets a request."""

    # Replicas

    def join(self, replica: Replica) -> None:
        """From now on, the router may choose it."""
        insort(self.serving, replica, key=lambda one: one.index)
        self._places = None

    def leave(self, replica: Replica) -> None:
        """From now on, the router may not choose it."""
        if replica in self.serving:
            self.serving.remove(replica)
            self._places = None

    def note_change(self, replica: Replica) -> None:
        """Its view must be made again, before the router sees it."""
        self._changed.add(replica)

    # Requests

    def send(self, client: Client, now: float) -> Replica | None:
        """Queue a request in the replica that the router chooses, or in another one if it is full.

        Return the replica; None if the request ended because there is none.
        """
        full: set[Replica] = set()
        refusal: OverloadedError | None = None
        while True:
            replica = self._choose(client, full)
            if replica is None:
                self._fail(client, refusal)
                return None
            try:
                self._submit(client, replica, now)
            except (RateLimitedError, InvalidRequestError, RequestFailedError) as error:
                self._fail(client, error)
                return None
            except OverloadedError as error:
                refusal = error
                full.add(replica)
                continue
            return replica

    def rescue(self, client: Client, now: float) -> Replica | None:
        """Send a request of a lost replica to another one, unless its sender has a part of the
        answer, or it was in MAX_ENGINES lost replicas."""
        is_begun = client.first_token is not None
        if is_begun or client.num_engines == MAX_ENGINES:
            self._tally.fail(client.planned, LOST, is_begun=is_begun)
            return None
        self._tally.num_resent += 1
        return self.send(client, now)

    def refuse(self, planned: PlannedRequest, error: TokenmillError) -> None:
        """End a request that has not been sent."""
        reason = REFUSALS[type(error)]
        self._examples.setdefault(reason, str(error))
        self._tally.fail(planned, reason, is_begun=False)

    def _fail(self, client: Client, error: TokenmillError | None) -> None:
        if error is None:
            self._tally.fail(client.planned, NO_REPLICA, is_begun=False)
        else:
            self.refuse(client.planned, error)

    def _choose(self, client: Client, full: set[Replica]) -> Replica | None:
        replicas = [one for one in self.serving if one not in full] if full else self.serving
        if not replicas:
            return None
        if self._config.data_parallel_size == 1:  # a server with one replica has no router
            return replicas[0]
        views = [one.view() for one in replicas] if full else self._fresh_views()
        engine = replicas[0].engine
        routed = Routed(client.checked, engine.info, is_hashed=self._config.enable_prefix_caching)
        index = self.router.route(routed, views)
        assert self._places is not None
        return self.serving[self._places[index]]

    def _submit(self, client: Client, replica: Replica, now: float) -> None:
        request_id = f"request-{client.number}"
        if client.num_engines:
            request_id += f"-{client.num_engines}"
        if replica.is_alive:
            self.before_submit(replica)
            request_id = replica.engine.add(client.checked, request_id, now, now)
        else:
            self._tally.num_sent_to_lost += 1
        client.num_engines += 1
        replica.open[request_id] = client
        self._tally.note_sent(replica)
        self._changed.add(replica)

    def _fresh_views(self) -> list[ReplicaView]:
        """A view per replica that serves. Only those that changed are made again."""
        if self._places is None:
            self._places = {one.index: place for place, one in enumerate(self.serving)}
            self._views = [one.view() for one in self.serving]
        else:
            for one in self._changed:
                place = self._places.get(one.index)
                if place is not None and self.serving[place] is one:
                    self._views[place] = one.view()
        self._changed.clear()
        return self._views.copy()
