"""Bounds the memory of all request bodies that are being received and decoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import APIError

BODIES_BYTES = 64 << 20
"""Bytes of all bodies together; four times --max-body-bytes if that is more."""
UNCOUNTED_BYTES = 16 << 10
"""First bytes of each body that do not count: slow large bodies must not keep out short requests.
The number of connections is their limit."""


class BodyBudget:
    """Counts the bytes that have arrived. Announcing a large body takes nothing from others."""

    def __init__(self, max_body_bytes: int) -> None:
        self._free = max(BODIES_BYTES, 4 * max_body_bytes)

    @contextmanager
    def account(self) -> Iterator[Account]:
        """An account for one body. At the end of the block all of its bytes are free again."""
        account = Account(self)
        try:
            yield account
        finally:
            self._free += account.num_bytes

    def take(self, num_bytes: int) -> None:
        """Raise APIError (503) if the bytes do not fit."""
        if num_bytes > self._free:
            raise APIError(
                503,
                "this server receives too many large bodies at once; try again later",
                code="overloaded",
                retry_after=1,
            )
        self._free -= num_bytes


class Account:
    """The bytes of one body."""

    def __init__(self, budget: BodyBudget) -> None:
        self.num_bytes = 0
        """Bytes that count."""
        self._budget = budget
        self._uncounted = UNCOUNTED_BYTES

    def take(self, num_bytes: int) -> None:
        """Add bytes. Raises APIError (503) if the budget of all bodies is used up."""
        uncounted = min(num_bytes, self._uncounted)
        self._uncounted -= uncounted
        self._budget.take(num_bytes - uncounted)
        self.num_bytes += num_bytes - uncounted
