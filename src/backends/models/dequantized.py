"""A record of packed weights that had to be dequantized, and what that costs."""

from __future__ import annotations

from collections import Counter

import torch

from ...core.log import get_logger
from ..weights.packed import PackedWeights

log = get_logger("model")


class Dequantized:
    """Counts matrices that the linear backend does not keep packed."""

    def __init__(self) -> None:
        self._matrices: Counter[str] = Counter()
        self._packed_bytes = 0
        self._dense_bytes = 0

    def add(self, matrix: PackedWeights, dtype: torch.dtype) -> None:
        """Count a matrix that is now dequantized to `dtype`."""
        self._matrices[matrix.format.name] += 1
        self._packed_bytes += matrix.num_bytes
        self._dense_bytes += matrix.shape[0] * matrix.shape[1] * dtype.itemsize

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
