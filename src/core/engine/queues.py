"""The queues of waiting and running requests. Every live request is in exactly one of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from math import inf

from .request import Request, RequestStatus


class RequestQueues:
    """The engine's requests by `engine_id`, by arrival and by rank, and their deadlines.

    A finished request stays known until `forget`, because an open plan may still use its blocks.
    """

    def __init__(self) -> None:
        self.running: list[Request] = []
        """Most senior first."""
        self.waiting: dict[str, Request] = {}
        """In order of arrival."""
        self._requests: dict[str, Request] = {}
        self._deadlines: list[tuple[float, int, Request]] = []
        """Sorted, of live requests only: a heap would keep an ended request until its deadline."""
        self._last_sequence = 0

    def __contains__(self, engine_id: str) -> bool:
        return engine_id in self._requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def live(self, engine_id: str) -> Request | None:
        """The request with this id, if it is known and has not ended."""
        request = self._requests.get(engine_id)
        return None if request is None or request.status is RequestStatus.FINISHED else request

    def add(self, request: Request) -> None:
        """Queue a new request, and give it its place in the order of arrival."""
        self._last_sequence += 1
        request.sequence = self._last_sequence
        self._requests[request.engine_id] = request
        self.waiting[request.engine_id] = request
        if request.group is not None:
            request.group.members.append(request)
        if request.deadline is not None:
            insort(self._deadlines, (request.deadline, request.sequence, request))

    def start(self, request: Request) -> None:
        """Move a waiting request to the running ones."""
        del self.waiting[request.engine_id]
        insort(self.running, request, key=lambda r: r.rank)
        request.status = RequestStatus.RUNNING

    def requeue(self, request: Request) -> None:
        """Move a running request back to its place among the waiting ones."""
        self.running.remove(request)
        waiting = sorted((*self.waiting.values(), request), key=lambda r: r.sequence)
        self.waiting = {one.engine_id: one for one in waiting}
        request.status = RequestStatus.WAITING

    def end(self, request: Request) -> None:
        """Mark a live request as finished and remove it from its queue."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            del self.waiting[request.engine_id]
        request.status = RequestStatus.FINISHED
        if request.deadline is not None:
            del self._deadlines[bisect_left(self._deadlines, (request.deadline, request.sequence))]

    def forget(self, request: Request) -> None:
        """Remove a finished request completely. Its id may be used again."""
        assert request.status is RequestStatus.FINISHED
        del self._requests[request.engine_id]
        # Request and view refer to each other. Without this, only the garbage collector frees them.
        del request.view

    @property
    def has_deadlines(self) -> bool:
        """Whether any live request has a deadline."""
        return bool(self._deadlines)

    def expired(self, now: float) -> list[Request]:
        """The live requests whose deadline has passed."""
        return [r for _, _, r in self._deadlines[: bisect_right(self._deadlines, (now, inf))]]

    def ready(self) -> list[Request]:
        """Waiting requests that could start, in order of arrival. Siblings wait until their prompt
        is computed."""
        return [r for r in self.waiting.values() if r.group is None or not r.group.must_wait(r)]

    def most_senior(self) -> Request | None:
        """The live request with the smallest rank, or None."""
        oldest = min(self.waiting.values(), key=lambda r: r.rank, default=None)
        if self.running and (oldest is None or self.running[0].rank < oldest.rank):
            return self.running[0]
        return oldest

    def check(self) -> None:
        """Raise AssertionError unless every live request is in the queue of its status, once."""
        running = {request.engine_id: request for request in self.running}
        assert len(running) == len(self.running), (
            f"a request runs twice: {[request.engine_id for request in self.running]}"
        )
        for request in self:
            waits = self.waiting.get(request.engine_id) is request
            runs = running.get(request.engine_id) is request
            assert waits is (request.status is RequestStatus.WAITING), _wrong(request, "waiting")
            assert runs is (request.status is RequestStatus.RUNNING), _wrong(request, "running")
            if request.status is RequestStatus.FINISHED:
                assert request.num_open_plans, f"{request.engine_id!r} ended and is still known"
        assert len(self.running) + len(self.waiting) <= len(self._requests), (
            f"unknown requests are among {[*running, *self.waiting]}"
        )
        assert self.running == sorted(self.running, key=lambda r: r.rank), (
            f"running requests are not in the order of their rank: {list(running)}"
        )


def _wrong(request: Request, queue: str) -> str:
    return f"{request.engine_id!r} is {request.status.value}: the {queue} queue is wrong"
