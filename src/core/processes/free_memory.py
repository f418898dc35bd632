"""Returns freed memory to the system."""

from __future__ import annotations

import asyncio
import ctypes
from contextlib import suppress

RETURN_SECONDS = 60.0
"""Time between two returns. One takes 8 ms for a heap of 100 MB."""


def return_free_memory() -> None:
    """Return memory that this process has freed. Otherwise glibc keeps it for later use."""
    with suppress(AttributeError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)


async def return_memory_regularly() -> None:
    """Return freed memory from time to time, on another thread, until the task is cancelled.

    glibc returns only what is free at the end of a heap, and has a heap per thread. So a process
    with threads grows in steps, although all that it keeps is as large as before.
    """
    while True:
        await asyncio.sleep(RETURN_SECONDS)
        await asyncio.to_thread(return_free_memory)
