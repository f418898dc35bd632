"""Runs the steps of replicas, as each engine's own loop does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from ...core.engine.committing import RequestUpdate
from ..virtual_engine import Jump, OpenStep
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
        sender.before_submit = self.catch_up

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
        if (jump := replica.engine.jump(time)) is not None:
            replica.step = jump
            self._clock.at(jump.ends[-1], self._land, replica, jump)
        elif (
            not self._launch(replica, time) and (turn := replica.engine.next_turn(time)) is not None
        ):
            self._turn_at(replica, max(time, turn))

    def _launch(self, replica: Replica, begin: float) -> bool:
        """Begin a step at the time `begin`, which may be in the past; returns whether one began."""
        step, updates = replica.engine.launch(begin)
        self._note(replica, updates)
        if step is None:
            return False
        replica.step = step
        self._clock.at(step.end, self._commit, replica, step)
        self._report_later(replica, step, begin)
        return True

    def _report_later(self, replica: Replica, step: OpenStep, last: float) -> None:
        """Plan the next report of the load in a long step. `last`: the time of the last report."""
        while step.end - last > REPORT_SECONDS:
            last += REPORT_SECONDS
            if last >= self._clock.now:
                self._clock.at(last, self._report, replica, step)
                return

    def catch_up(self, replica: Replica) -> None:
        """Interrupt the jump of a replica whose requests are about to change.

        End the steps before now and begin the next one, so that the replica has the same state as
        without the jump. Does nothing if the replica is not in a jump.
        """
        jump = replica.step
        if not isinstance(jump, Jump):
            return
        num_steps = bisect_left(jump.ends, self._clock.now)
        self._end_steps(replica, jump, num_steps)
        self._launch(replica, jump.ends[num_steps - 1] if num_steps else jump.begin)

    def _land(self, replica: Replica, jump: Jump) -> None:
        if replica.step is jump:
            self._end_steps(replica, jump, len(jump.ends))
            self._next(replica)

    def _end_steps(self, replica: Replica, jump: Jump, num_steps: int) -> None:
        replica.step = None
        if num_steps:
            replica.engine.land(jump, num_steps)
            self._tally.note_tokens(replica.open.values(), jump.ends[:num_steps])

    def _report(self, replica: Replica, step: OpenStep) -> None:
        if replica.step is step:
            replica.report()
            self._sender.note_change(replica)
            self._report_later(replica, step, self._clock.now)

    def _commit(self, replica: Replica, step: OpenStep) -> None:
        if replica.step is not step:  # it has died
            return
        replica.step = None
        updates = replica.engine.commit(step)
        replica.report()
        self._note(replica, updates)
        self._sender.note_change(replica)
        self._next(replica)

    def _next(self, replica: Replica) -> None:
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
