"""Sums over all ranks of a model by the native library, through memory that the ranks share."""

from __future__ import annotations

import ctypes
import mmap
import os

import torch

from .native.library import Library
from .native.structures import RanksStruct

_SLOT_FLOATS = 1 << 20
"""Numbers that a rank exchanges at once: the partial sums of 256 tokens of size 4096. The system
provides only the memory that steps write."""


class NativeRanks:
    """This process as one of several ranks of a machine. See models/tensor_parallel.py."""

    def __init__(
        self, library: Library, rank: int, size: int, file: int, slot_floats: int = _SLOT_FLOATS
    ) -> None:
        """`file`: descriptor of a file that all ranks share, empty at first. It stays open.
        `slot_floats`: the same on all ranks."""
        self._file, self._used = file, 0
        self.struct = RanksStruct(rank=rank, size=size, slot_floats=slot_floats)
        pointer = ctypes.POINTER(RanksStruct)
        num_bytes = library.function("tm_shared_bytes", ctypes.c_int64, pointer)(self.struct)
        self._memory = self._map(num_bytes)
        self.struct.memory = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._sum = library.computing(
            "tm_sum_over_ranks", "sums over ranks", RanksStruct, ctypes.c_void_p, ctypes.c_int64
        )

    def sum(self, part: torch.Tensor) -> None:
        """Replace partial sums, contiguous float32, by the sums over all ranks.

        Every rank adds in the same order, so all get the same bits.
        """
        assert part.is_contiguous() and part.dtype is torch.float32
        self._sum(ctypes.byref(self.struct), part.data_ptr(), part.numel())

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        """The first rank's copy of a tensor, in memory that all ranks read."""
        flat = torch.frombuffer(self._map(tensor.nbytes), dtype=tensor.dtype, count=tensor.numel())
        shared = flat.view(tensor.shape)
        if self.struct.rank == 0:
            shared.copy_(tensor)
        self.sum(torch.zeros(1))  # waits until the copy is made
        return shared

    def _map(self, num_bytes: int) -> mmap.mmap:
        """The next part of the file. All ranks ask for the same parts, in the same order."""
        start = self._used
        self._used += -(-num_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        if os.fstat(self._file).st_size < self._used:
            os.truncate(self._file, self._used)
        return mmap.mmap(self._file, num_bytes, offset=start)
