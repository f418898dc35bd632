"""Main memory on huge pages, for weights and KV cache."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Sequence
from contextlib import suppress

import torch

from ...core.errors import ConfigError

_HUGE_PAGE = 2 << 20


class HostMemory:
    """Memory of zeros that takes up physical memory only once written, on huge pages if possible.

    Every step reads weights and KV cache from end to end. With pages of 4 KB a sixth of that time
    is address translation. The memory is freed when this object and all tensors in it are gone.
    """

    def __init__(self, num_bytes: int) -> None:
        """Reserve memory; the size is rounded up to whole huge pages.

        Raises ConfigError if the system refuses.
        """
        self.num_bytes = -(-num_bytes // _HUGE_PAGE) * _HUGE_PAGE
        self._memory = _map(self.num_bytes + _HUGE_PAGE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.address = -(-first // _HUGE_PAGE) * _HUGE_PAGE
        """Aligned to a huge page."""
        self._start = self.address - first

    def tensor(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor over the bytes from `offset` on; the tensor keeps the memory alive."""
        count = math.prod(shape)
        assert offset + count * dtype.itemsize <= self.num_bytes
        flat = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=self._start + offset)
        return flat.view(*shape)


def _map(num_bytes: int) -> mmap.mmap:
    try:
        return _map_private(num_bytes)
    except OSError as error:
        raise ConfigError(
            f"{num_bytes / (1 << 30):.1f} GiB of memory cannot be reserved: {error}; "
            "raise the limit of this process, or lower --kv-cache-memory"
        ) from error


def _map_private(num_bytes: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, num_bytes)
    # Python's default is shared memory, which gets huge pages only if the administrator allows it.
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with suppress(OSError):  # a system without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
