"""Returns freed memory to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def return_free_memory() -> None:
    """Return memory that this process has freed. Otherwise glibc keeps it for later use."""
    with suppress(AttributeError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)
