"""Freed memory goes back to the system, and threads share what is kept."""

from __future__ import annotations

import platform
import subprocess
import sys

import psutil
import pytest

from tokenmill.core.processes.free_memory import return_free_memory

SIZE, COUNT = 2000, 50_000
"""Bytes, more than Python's own allocator takes, and number of blocks."""
GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries differ")


@GLIBC
def test_memory_below_a_block_that_is_used_goes_back_to_the_system() -> None:
    blocks = [bytes(SIZE) for _ in range(COUNT)]
    last = blocks[-1]  # without it, glibc would give back what is below
    process = psutil.Process()
    del blocks
    before = process.memory_info().rss
    return_free_memory()
    assert before - process.memory_info().rss > SIZE * COUNT // 2
    assert len(last) == SIZE


NUM_THREADS = 6
COUNT_HEAPS = f"""
import ctypes, re, sys, tempfile, threading
from tokenmill.core.processes.free_memory import share_heaps

if sys.argv[1:] == ["share"]:
    share_heaps()
meeting = threading.Barrier({NUM_THREADS})
allocate = lambda: bytes({SIZE}) and meeting.wait()
threads = [threading.Thread(target=allocate) for _ in range({NUM_THREADS})]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(len(re.findall(b"<heap ", file.read())))
"""


@GLIBC
def test_threads_share_two_heaps() -> None:
    def num_heaps(*arguments: str) -> int:
        return int(subprocess.check_output([sys.executable, "-c", COUNT_HEAPS, *arguments]))

    assert num_heaps() > 2
    assert num_heaps("share") == 2
