"""Counts what the senders of a fleet's requests see."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ...core.outputs import FinishReason
from ..workload import PlannedRequest
from .replica import Client, Replica

NUM_INTERVALS = 60
"""Points of a chart over time."""
_ENDS = {FinishReason.ABORT: "timed out", FinishReason.ERROR: "failed"}
_STEP = math.log(1.005)
"""Gaps between tokens are kept to half a percent, because there may be a hundred million."""


class Gaps:
    """Seconds between two tokens, counted in intervals whose ends differ by half a percent."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a gap of some seconds, `count` times."""
        self._counts[math.ceil(math.log(max(seconds, 1e-9)) / _STEP)] += count

    def percentile(self, fraction: float) -> float | None:
        """The value in milliseconds that a fraction of the gaps does not exceed, at most 0.5 % too
        high. None if there are no gaps."""
        rank = max(1, math.ceil(fraction * self._counts.total()))
        seen = 0
        for key in sorted(self._counts):
            seen += self._counts[key]
            if seen >= rank:
                return 1000 * math.exp(key * _STEP)
        return None


@dataclass(slots=True)
class Interval:
    """Counts of one interval of the run."""

    num_arrived: int = 0
    num_good: int = 0
    """Good requests that arrived in it, whenever they ended."""
    num_failed: int = 0
    """Failed requests that arrived in it, whenever they ended."""
    ttfts: array[float] = field(default_factory=lambda: array("d"))
    num_serving: int = 0
    """Replicas that serve at its end."""


class Tally:
    """The figures of a run so far."""

    def __init__(self, limits_ms: dict[str, float], interval_seconds: float) -> None:
        self._limits_ms = limits_ms
        self.interval_seconds = interval_seconds
        self.intervals: list[Interval] = []
        self.ttfts, self.e2els, self.tpots = array("d"), array("d"), array("d")
        self.gaps = Gaps()
        self.failures: Counter[str] = Counter()
        """Requests that ended with an error, by reason."""
        self.num_begun_lost = 0
        self.num_requests = 0
        self.num_completed = 0
        self.num_good = 0
        self.num_output_tokens = 0
        self.num_resent = 0
        self.num_sent_to_lost = 0
        self.num_sent: Counter[int] = Counter()
        """By index of the replica."""
        self.max_open = 0
        """Maximum number of requests that a replica had at once."""
        self.replica_seconds = 0.0
        self.max_serving = 0

    # Requests

    def arrive(self, at: float) -> None:
        """Count a request that comes to the server."""
        self.num_requests += 1
        self._interval(at).num_arrived += 1

    def note_sent(self, replica: Replica) -> None:
        """Count a request that was sent to a replica."""
        self.num_sent[replica.index] += 1
        self.max_open = max(self.max_open, len(replica.open))

    def note_token(self, client: Client, now: float) -> None:
        """Count a token that its sender gets."""
        self.num_output_tokens += 1
        client.num_tokens += 1
        if client.first_token is None or client.last_token is None:
            client.first_token = now
            self.ttfts.append(now - client.planned.at)
            self._interval(client.planned.at).ttfts.append(now - client.planned.at)
        else:
            self.gaps.add(now - client.last_token)
        client.last_token = now

    def note_tokens(self, clients: Collection[Client], times: Sequence[float]) -> None:
        """Count one token at each time for each client. Each client already has a token."""
        self.num_output_tokens += len(clients) * len(times)
        for client in clients:
            assert client.last_token is not None
            self.gaps.add(times[0] - client.last_token)
            client.num_tokens += len(times)
            client.last_token = times[-1]
        for before, time in pairwise(times):
            self.gaps.add(time - before, len(clients))

    def end(self, client: Client, reason: FinishReason, now: float) -> None:
        """Count a request that its engine has ended."""
        if reason is not FinishReason.LENGTH:
            self.fail(
                client.planned,
                _ENDS.get(reason, str(reason)),
                is_begun=client.first_token is not None,
            )
            return
        assert client.first_token is not None
        self.num_completed += 1
        self.e2els.append(now - client.planned.at)
        tpot = 0.0
        if client.num_tokens > 1:
            tpot = (now - client.first_token) / (client.num_tokens - 1)
            self.tpots.append(tpot)
        found = {"ttft": client.first_token, "e2el": now}
        times = {name: 1000 * (at - client.planned.at) for name, at in found.items()}
        times["tpot"] = 1000 * tpot
        if all(times[name] <= limit for name, limit in self._limits_ms.items()):
            self.num_good += 1
            self._interval(client.planned.at).num_good += 1

    def fail(self, planned: PlannedRequest, reason: str, *, is_begun: bool) -> None:
        """Count a request that ends with an error. `is_begun`: its sender has a part of the
        answer."""
        self.failures[reason] += 1
        self.num_begun_lost += is_begun
        self._interval(planned.at).num_failed += 1

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return self.num_requests - self.num_completed - self.failures.total()

    # Replicas

    def note_serving(self, num_serving: int, now: float) -> None:
        """Note how many replicas serve from now on."""
        self.max_serving = max(self.max_serving, num_serving)
        self._interval(now).num_serving = num_serving

    def pay(self, replica: Replica, now: float) -> None:
        """Count the time that a replica cost until it ended."""
        self.replica_seconds += now - replica.since

    def _interval(self, at: float) -> Interval:
        number = int(at / self.interval_seconds)
        while len(self.intervals) <= number:
            before = self.intervals[-1].num_serving if self.intervals else 0
            self.intervals.append(Interval(num_serving=before))
        return self.intervals[number]
