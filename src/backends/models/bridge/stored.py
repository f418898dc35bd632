"""Gives transformers the tensors of a checkpoint one at a time, dequantized."""

from __future__ import annotations

import torch

from ...weights.checkpoint import Checkpoint
from ..native.dequantized import Dequantized


class StoredWeight:
    """A tensor that is read when transformers asks for all of it, like a slice of safetensors."""

    def __init__(self, checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> None:
        """`dtype`: of the result, if the tensor is packed. Other tensors keep their own."""
        self._checkpoint = checkpoint
        self._name = name
        self._dtype = dtype
        self._is_packed = not isinstance(checkpoint.stored(name).format, torch.dtype)

    def __getitem__(self, index: object) -> torch.Tensor:
        """Return the tensor; transformers asks for `[...]`. Raises ConfigError."""
        assert index is Ellipsis
        tensor = self._checkpoint.tensor(self._name)
        return tensor.to(self._dtype) if self._is_packed else tensor


def weights_of(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, StoredWeight]:
    """Return all tensors by name; log the memory that packed ones cost as `dtype`.

    Raises ConfigError for a damaged tensor.
    """
    dequantized = Dequantized()
    for stored in map(checkpoint.stored, checkpoint.tensor_names()):
        if not isinstance(stored.format, torch.dtype):
            dequantized.add(stored, dtype)
    dequantized.log()
    return {name: StoredWeight(checkpoint, name, dtype) for name in checkpoint.tensor_names()}
