"""Main memory straight from the system, for what is large and lives long."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Sequence
from contextlib import suppress

import torch

_HUGE_PAGE = 2 << 20


class HostMemory:
    """Zero bytes that the system hands over as they are first written, on huge pages if it can.

    Weights and KV cache are read from end to end in every step; with pages of 4 KB a sixth of that
    time goes into address translation. The memory is given back when this object and all tensors in
    it are gone.
    """

    def __init__(self, num_bytes: int) -> None:
        """Its size is rounded up to whole huge pages."""
        self.num_bytes = -(-num_bytes // _HUGE_PAGE) * _HUGE_PAGE
        self._memory = _map(self.num_bytes + _HUGE_PAGE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.address = -(-first // _HUGE_PAGE) * _HUGE_PAGE
        """On a boundary of huge pages."""
        self._start = self.address - first

    def tensor(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The bytes from `offset` on as a tensor, which keeps them alive."""
        count = math.prod(shape)
        assert offset + count * dtype.itemsize <= self.num_bytes
        flat = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=self._start + offset)
        return flat.view(*shape)


def _map(num_bytes: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, num_bytes)
    # Shared memory, Python's default, gets huge pages only where the administrator says so.
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with suppress(OSError):  # a system without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
