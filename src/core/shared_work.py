"""Work on a thread that several callers may wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import OverloadedError

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


@dataclass(slots=True)
class _Open(Generic[Result]):
    """Work that is not done, or whose result a caller has not taken yet."""

    future: Future[Result]
    size: int
    num_callers: int = 0


class SharedWork(Generic[Key, Result]):
    """A thread that does one piece of work after the other. Callers with the same key share one.

    Work that no caller waits for any more is dropped, unless it has begun. For one event loop.
    """

    def __init__(
        self, name: str, *, max_count: int, max_size: int | None = None, too_many: str
    ) -> None:
        """At most `max_count` pieces are open. Their sizes, in the caller's unit, are together at
        most `max_size`, except that a single piece may be larger. `too_many`: the error message.
        """
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"tokenmill-{name}")
        self._max_count, self._max_size, self._too_many = max_count, max_size, too_many
        self._open: dict[Key, _Open[Result]] = {}

    async def run(self, key: Key, work: Callable[[], Result], size: int = 0) -> Result:
        """Wait for the result of the key's work, which an earlier caller may have begun.

        Raises OverloadedError if too much other work is open, and what `work` raises.
        """
        shared = self._open.get(key)
        if shared is None:
            if self._is_full_for(size):
                raise OverloadedError(self._too_many)
            shared = self._open[key] = _Open(self.thread.submit(work), size)
        shared.num_callers += 1
        try:
            # A caller that is cancelled must not cancel the work of the others.
            return await asyncio.shield(asyncio.wrap_future(shared.future))
        finally:
            shared.num_callers -= 1
            if not shared.num_callers:
                del self._open[key]
                shared.future.cancel()

    def close(self) -> None:
        """Drop work that has not begun."""
        self.thread.shutdown(wait=False, cancel_futures=True)

    def _is_full_for(self, size: int) -> bool:
        if not self._open or self._max_size is None:
            return len(self._open) >= self._max_count
        total = size + sum(one.size for one in self._open.values())
        return len(self._open) >= self._max_count or total > self._max_size
