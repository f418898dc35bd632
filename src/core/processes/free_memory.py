"""Returns freed memory to the system."""

from __future__ import annotations

import asyncio
import ctypes
from contextlib import suppress

RETURN_SECONDS = 60.0
"""Time between two returns. One takes 8 ms for a heap of 100 MB."""

_M_ARENA_MAX = -8
"""A parameter of glibc's mallopt: the maximum number of heaps."""


def share_heaps() -> None:
    """Let the threads of this process share two heaps. Call it before they start.

    Otherwise glibc gives each of them a heap, whose free parts the others cannot use. Not for a
    process that computes: its threads would wait for each other.
    """
    with suppress(AttributeError):  # other C libraries have no such function
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def return_free_memory() -> None:
    """Return memory that this process has freed. Otherwise glibc keeps it for later use."""
    with suppress(AttributeError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)


async def return_memory_regularly() -> None:
    """Return freed memory from time to time, on another thread, until the task is cancelled.

    By itself, glibc returns only what is free at the end of a heap. So a process grows in steps,
    although all that it keeps is as large as before.
    """
    while True:
        await asyncio.sleep(RETURN_SECONDS)
        await asyncio.to_thread(return_free_memory)
