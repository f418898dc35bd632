"""Freed memory goes back to the system."""

from __future__ import annotations

import platform

import psutil
import pytest

from tokenmill.core.processes.free_memory import return_free_memory

SIZE, COUNT = 2000, 50_000
"""Bytes, more than Python's own allocator takes, and number of blocks."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep no memory")
def test_memory_below_a_block_that_is_used_goes_back_to_the_system() -> None:
    blocks = [bytes(SIZE) for _ in range(COUNT)]
    last = blocks[-1]  # without it, glibc would give back what is below
    process = psutil.Process()
    del blocks
    before = process.memory_info().rss
    return_free_memory()
    assert before - process.memory_info().rss > SIZE * COUNT // 2
    assert len(last) == SIZE
