"""Starts, loses, updates, adds and removes the replicas of a fleet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .autoscaling import Recommendations
from .clock import Clock
from .driving import Driver
from .replica import Replica, State
from .sending import Sender
from .settings import Autoscaler, FleetSettings, Loss
from .tally import Tally

MakeReplica = Callable[[int, float], Replica]
"""Makes a replica from its index and the time from which it costs."""


class Operator:
    """Does to the replicas what the settings say, at their times."""

    def __init__(
        self,
        settings: FleetSettings,
        make_replica: MakeReplica,
        clock: Clock,
        sender: Sender,
        driver: Driver,
        tally: Tally,
    ) -> None:
        self._settings = settings
        self._make_replica = make_replica
        self._clock = clock
        self._sender = sender
        self._driver = driver
        self._tally = tally
        self._replicas: dict[int, Replica] = {}
        """All that cost, by index."""
        self._away: set[int] = set()
        """Indexes of replicas whose machines are lost and come back."""
        self._to_update: deque[int] = deque()
        self._updating: int | None = None
        driver.on_empty = self._on_empty

    def begin(self) -> None:
        """Serve with the first replicas, and register all events."""
        clock, settings = self._clock, self._settings
        for index in range(settings.num_replicas):
            self._serve(self._start(index))
        for loss in settings.losses:
            clock.at(loss.at, self._lose, loss)
        if settings.update_at is not None:
            clock.at(settings.update_at, self._begin_update)
        if (rule := settings.autoscaler) is not None:
            recommendations = Recommendations(rule)
            clock.at(rule.interval, self._scale, rule, recommendations)

    def end(self, now: float) -> None:
        """Count what the replicas have cost until now."""
        for replica in self._replicas.values():
            if replica.is_alive:
                self._tally.pay(replica, now)

    # Start and end of a replica

    def _start(self, index: int) -> Replica:
        replica = self._replicas[index] = self._make_replica(index, self._clock.now)
        return replica

    def _boot(self, index: int) -> None:
        """Start a replica. It serves later."""
        self._away.discard(index)
        replica = self._start(index)
        self._clock.at(self._clock.now + self._settings.start_seconds, self._serve, replica)

    def _serve(self, replica: Replica) -> None:
        if replica.state is not State.STARTING or not replica.is_alive:
            return
        replica.state = State.SERVING
        self._sender.join(replica)
        self._note_serving()
        if replica.index == self._updating:
            self._update_next()

    def _drain(self, replica: Replica) -> None:
        """Let a replica finish its requests, and end it then."""
        replica.state = State.DRAINING
        self._sender.leave(replica)
        self._note_serving()
        self._on_empty(replica)

    def _on_empty(self, replica: Replica) -> None:
        if replica.state is State.DRAINING and not replica.open:
            self._stop(replica)
            if replica.index == self._updating:
                self._boot(replica.index)

    def _stop(self, replica: Replica) -> None:
        replica.state, replica.is_alive = State.GONE, False
        del self._replicas[replica.index]
        self._sender.router.forget(replica.index)
        self._tally.pay(replica, self._clock.now)

    def _note_serving(self) -> None:
        self._tally.note_serving(len(self._sender.serving), self._clock.now)

    # Losses

    def _lose(self, loss: Loss) -> None:
        for index in range(loss.first, loss.last + 1):
            replica = self._replicas.get(index)
            if replica is not None and replica.is_alive:
                self._driver.catch_up(replica)
                replica.is_alive, replica.step = False, None
                self._tally.pay(replica, self._clock.now)
                seconds = self._settings.detection_seconds
                back_at = max(loss.at + loss.away, self._clock.now + seconds)
                self._clock.at(self._clock.now + seconds, self._detect, replica, back_at)

    def _detect(self, replica: Replica, back_at: float) -> None:
        """Answer the requests of a dead replica, or send them to others; start it again later."""
        is_wanted = replica.state is not State.DRAINING or replica.index == self._updating
        replica.state = State.GONE
        del self._replicas[replica.index]
        self._sender.leave(replica)
        self._sender.router.forget(replica.index)
        self._note_serving()
        for client in replica.open.values():
            self._driver.rescue(client)
        replica.open.clear()
        if is_wanted:
            self._away.add(replica.index)
            self._clock.at(back_at, self._return, replica.index)

    def _return(self, index: int) -> None:
        if index in self._away:  # the autoscaler may have given it up
            self._boot(index)

    # Rolling update

    def _begin_update(self) -> None:
        self._to_update.extend(one.index for one in self._sender.serving)
        self._update_next()

    def _update_next(self) -> None:
        """Restart the next replica of those that served when the update began."""
        self._updating = None
        serving = {one.index: one for one in self._sender.serving if one.is_alive}
        while self._to_update and self._updating is None:
            index = self._to_update.popleft()
            if index in serving:
                self._updating = index
                self._drain(serving[index])

    # Autoscaler

    def _scale(self, rule: Autoscaler, recommendations: Recommendations) -> None:
        now = self._clock.now
        current = len(self._away) + sum(
            one.state in (State.STARTING, State.SERVING) for one in self._replicas.values()
        )
        serving = self._sender.serving
        if rule.metric == "kv":
            total = sum(one.load.kv_cache_usage for one in serving)
        else:
            total = float(sum(len(one.open) for one in serving))
        # As in Kubernetes, replicas that start count with 0: otherwise too many would be started.
        per_replica = total / current if current else 0.0
        wanted = recommendations.decide(now, current, per_replica)
        for _ in range(wanted - current):
            taken = self._replicas.keys() | self._away
            self._boot(next(index for index in range(len(taken) + 1) if index not in taken))
        for _ in range(current - wanted):
            self._remove_one()
        self._clock.at(now + rule.interval, self._scale, rule, recommendations)

    def _remove_one(self) -> None:
        """Remove a replica that is away, else one that starts, else the last one that serves."""
        starting = [i for i, one in self._replicas.items() if one.state is State.STARTING]
        if self._away:
            self._away.remove(max(self._away))
        elif starting and max(starting) != self._updating:
            self._stop(self._replicas[max(starting)])
        else:
            serving = [one for one in self._sender.serving if one.is_alive]
            if serving:
                self._drain(serving[-1])
