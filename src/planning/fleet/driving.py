"""Runs the steps of replicas, as each engine's own loop does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.engine.committing import RequestUpdate
from ..virtual_engine import OpenStep
from .clock import Clock
from .replica import Client, Replica
from .sending import Sender
from .tally import Tally

REPORT_SECONDS = 0.25
"""An engine process reports its load after each step, and at least this often."""


class Driver:
    """Sends requests to replicas, and computes what they have."""

    def __init__(self, clock: Clock, sender: Sender, tally: Tally) -> None:
        self._clock = clock
        self._sender = sender
        self._tally = tally
        self.on_empty: Callable[[Replica], None] = lambda replica: None
        """Called when a replica's last request has ended."""

    def send(self, client: Client) -> None:
        """Send a new request."""
        self._wake(self._sender.send(client, self._clock.now))

    def rescue(self, client: Client) -> None:
        """Send a request of a lost replica again, if that is allowed."""
        self._wake(self._sender.rescue(client, self._clock.now))

    def _wake(self, replica: Replica | None) -> None:
        if replica is not None and replica.is_alive and replica.step is None:
            self._turn_at(replica, self._clock.now)

    def _turn_at(self, replica: Replica, time: float) -> None:
        if replica.turn_at != time:
            replica.turn_at = time
            self._clock.at(time, self._turn, replica, time)

    def _turn(self, replica: Replica, time: float) -> None:
        """Begin a step, or wait as long as the scheduler wants."""
        if replica.turn_at != time or replica.step is not None or not replica.is_alive:
            return  # something else has happened meanwhile
        replica.turn_at = None
        now = self._clock.now
        step, updates = replica.engine.launch(now)
        self._note(replica, updates)
        if step is not None:
            replica.step = step
            self._clock.at(step.end, self._commit, replica, step)
            if step.end - now > REPORT_SECONDS:
                self._clock.at(now + REPORT_SECONDS, self._report, replica, step)
        elif (turn := replica.engine.next_turn(now)) is not None:
            self._turn_at(replica, max(now, turn))

    def _report(self, replica: Replica, step: OpenStep) -> None:
        if replica.step is step:
            replica.report()
            self._sender.note_change(replica)
            if step.end - self._clock.now > REPORT_SECONDS:
                self._clock.at(self._clock.now + REPORT_SECONDS, self._report, replica, step)

    def _commit(self, replica: Replica, step: OpenStep) -> None:
        if replica.step is not step:  # it has died
            return
        replica.step = None
        updates = replica.engine.commit(step)
        replica.report()
        self._note(replica, updates)
        self._sender.note_change(replica)
        replica.turn_at = self._clock.now
        self._turn(replica, self._clock.now)

    def _note(self, replica: Replica, updates: Sequence[RequestUpdate]) -> None:
        now, tally = self._clock.now, self._tally
        for update in updates:
            client = replica.open[update.engine_id]
            if update.token_ids:
                tally.note_token(client, now)
            if update.finish_reason is not None:
                tally.end(client, update.finish_reason, now)
                del replica.open[update.engine_id]
        if updates and not replica.open:
            self.on_empty(replica)
