"""Measures how long a server's event loop works in one callback."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any, Self

from .serving import Served


class LoopTime:
    """Notes the longest CPU time that the server's event loop takes for one callback.

    CPU time of the loop's thread: other threads and processes do not count. Nor does the garbage
    collector, which looks through everything that the tests have imported.
    """

    def __init__(self, served: Served) -> None:
        self.longest = 0.0
        """Seconds."""
        self.total = 0.0
        """Seconds of all callbacks together."""
        self._served = served

    def __enter__(self) -> Self:
        gc.disable()
        self._run = asyncio.Handle._run
        loop = self._served.loop

        def run(handle: Any) -> None:
            if handle._loop is not loop:
                self._run(handle)
                return
            begun = time.thread_time()
            self._run(handle)
            took = time.thread_time() - begun
            self.longest = max(self.longest, took)
            self.total += took

        asyncio.Handle._run = run  # type: ignore[method-assign]
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._served.run(asyncio.sleep(0))  # until the last callback has ended
        asyncio.Handle._run = self._run  # type: ignore[method-assign]
        gc.enable()
