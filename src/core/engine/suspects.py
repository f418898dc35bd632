"""Requests of a step that raised. They are repeated in ever smaller groups, until the one that
makes its step raise is alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .request import Request, RequestStatus


@dataclass(frozen=True, slots=True, eq=False)
class Suspect:
    """A request of a step that raised."""

    request: Request
    until: int
    """Number of computed tokens with which the request has repeated what the step computed."""

    @property
    def is_open(self) -> bool:
        """Whether the request is still suspected. Otherwise it has ended, or was repeated."""
        request = self.request
        is_live = request.status is not RequestStatus.FINISHED
        return is_live and request.num_computed_tokens < self.until


class Suspects:
    """The suspects in groups, and the order in which the groups are repeated.

    A step that raises with k requests costs at most 2 k further steps that raise, and about
    2 log2(k) if one request is to blame.
    """

    def __init__(self) -> None:
        self._groups: deque[list[Suspect]] = deque()

    def __iter__(self) -> Iterator[Request]:
        return (one.request for group in self._groups for one in group if one.is_open)

    def current(self) -> list[Request]:
        """The requests to repeat now, apart from all others; none if there is no suspect."""
        while self._groups:
            requests = [one.request for one in self._groups[0] if one.is_open]
            if requests:
                return requests
            self._groups.popleft()
        return []

    def split(self, suspects: Sequence[Suspect]) -> None:
        """Repeat these requests next, in two halves: their step raised."""
        failed = {one.request.engine_id for one in suspects}
        if self._groups:  # the step repeated members of the first group
            self._groups[0] = [
                one for one in self._groups[0] if one.request.engine_id not in failed
            ]
        middle = (len(suspects) + 1) // 2
        self._groups.extendleft((list(suspects[middle:]), list(suspects[:middle])))
