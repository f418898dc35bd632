"""The time of a request outside of the engine's steps: tokenizing, and slow readers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..contract.client import RequestStream
from ..contract.explanation import Explanation, Limit

TOKENIZING = "checking and tokenizing"
READING = "client slow to read"
PASSING = "messages and event loops"
LOST = "computed by an engine that was lost"
BYTES = 4096
"""Bytes of the step log for which the times of one request are kept. They need a tenth of it."""


@dataclass(slots=True, eq=False)
class StreamTimes:
    """Times of one stream, of the monotonic clock."""

    sent: float = 0.0
    """When it was sent to an engine for the first time."""
    restart: float = 0.0
    """Seconds until it was sent to another engine, because the first one was lost."""
    complete: float | None = None
    """When its last output was there to be read."""
    read: float | None = None
    """When its reader came back after the last output, or left."""

    def send(self) -> None:
        """Note that it is sent to an engine."""
        now = time.monotonic()
        self.sent = self.sent or now
        self.restart = now - self.sent

    def end(self) -> None:
        """Note that its last output is there."""
        self.complete = self.complete or time.monotonic()

    def leave(self) -> None:
        """Note that its reader needs no more."""
        self.read = self.read or time.monotonic()


class TimedStream(RequestStream, Protocol):
    """A stream whose times are kept."""

    times: StreamTimes


@dataclass(slots=True, eq=False, kw_only=True)
class Served:
    """One prompt of a request, from its arrival on."""

    request_id: str
    prompt_index: int
    api_key_id: str | None
    num_prompt_tokens: int
    arrival: float
    tokenized: float
    times: StreamTimes = field(repr=False)

    def complete(self, found: Explanation) -> Explanation:
        """Add the time outside of the engine to its explanation: before it got the request and
        after it had computed the answer."""
        end = self.times.read or time.monotonic()
        late = 0.0 if self.times.complete is None else max(0.0, end - self.times.complete)
        tokenizing = self.tokenized - self.arrival
        known = found.seconds + tokenizing + late + self.times.restart
        rest = max(0.0, end - self.arrival - known)
        before = tokenizing + self.times.restart
        waiting = dict(found.waiting)
        if self.times.restart:
            waiting[Limit.RESTART] = self.times.restart
        first = found.first_token_seconds
        return replace(
            found,
            seconds=known + rest,
            first_token_seconds=None if first is None else first + before,
            waiting=waiting,
            server=found.server | {TOKENIZING: tokenizing, PASSING: rest, READING: late},
        )

    def explain_lost(self) -> Explanation:
        """The explanation of a request of which no engine knows anything."""
        end = self.times.read or time.monotonic()
        tokenizing = self.tokenized - self.arrival
        return Explanation(
            request_id=self.request_id,
            engine_id=self.request_id,
            prompt_index=self.prompt_index,
            api_key_id=self.api_key_id,
            finish_reason="error",
            seconds=end - self.arrival,
            num_prompt_tokens=self.num_prompt_tokens,
            server={TOKENIZING: tokenizing, LOST: end - self.arrival - tokenizing},
        )


class ServedRequests:
    """The last requests that this process served."""

    def __init__(self, step_log_size: int) -> None:
        self._max = step_log_size // BYTES
        self._known: dict[tuple[str, int], Served] = {}

    def add(self, served: Served) -> None:
        """Keep a request, and drop the oldest one if there are too many."""
        key = served.request_id, served.prompt_index
        self._known.pop(key, None)
        self._known[key] = served
        if len(self._known) > self._max:
            del self._known[next(iter(self._known))]

    def complete(self, found: Iterable[Explanation]) -> tuple[Explanation, ...]:
        """The explanations of engines, with the time before and after them."""
        return tuple(
            one
            if (served := self._known.get((one.request_id, one.prompt_index))) is None
            else served.complete(one)
            for one in found
        )

    def explain_lost(self, request_id: str) -> tuple[Explanation, ...]:
        """The explanations of a request that no engine knows."""
        return tuple(
            served.explain_lost() for key, served in self._known.items() if key[0] == request_id
        )
