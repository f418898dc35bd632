"""Dequantizes packed weights that are not kept, and records what that costs."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import torch

from ....core.log import get_logger
from ...weights.packed import PackedWeights, StoredTensor

log = get_logger("model")

_PIECE = 1 << 22
"""Numbers that are in memory in float32 at once, for each thread: 16 MiB."""


def dequantized(matrix: PackedWeights, dtype: torch.dtype) -> torch.Tensor:
    """Dequantize a matrix to a type of 16 bits, or to float32, in pieces and on several threads."""
    num_rows, num_inputs = matrix.shape
    rows = max(1, _PIECE // num_inputs)
    out = torch.empty(matrix.shape, dtype=dtype)

    def fill(begin: int) -> None:
        length = min(rows, num_rows - begin)
        out[begin : begin + length] = matrix.narrow(0, begin, length).dequantize()

    if num_rows <= rows:
        fill(0)
        return out
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for _ in threads.map(fill, range(0, num_rows, rows)):
            pass
    return out


class Dequantized:
    """Counts matrices that are not kept packed."""

    def __init__(self) -> None:
        self._matrices: Counter[str] = Counter()
        self._packed_bytes = 0
        self._dense_bytes = 0

    def add(self, matrix: PackedWeights | StoredTensor, dtype: torch.dtype) -> None:
        """Count a matrix that is dequantized to `dtype`."""
        assert not isinstance(matrix.format, torch.dtype)
        self._matrices[matrix.format.name] += 1
        self._packed_bytes += matrix.num_bytes
        self._dense_bytes += math.prod(matrix.shape) * dtype.itemsize

    def log(self) -> None:
        """Log the cost, if there is one. Decoding reads all weights once per step."""
        if self._matrices:
            log.warning(
                "weights_dequantized",
                matrices=dict(self._matrices),
                packed_mib=self._packed_bytes >> 20,
                memory_mib=self._dense_bytes >> 20,
                bytes_read_per_step=f"{self._dense_bytes / self._packed_bytes:.1f} times as many",
            )
