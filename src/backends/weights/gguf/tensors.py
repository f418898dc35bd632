"""Reads the tensors of a GGUF model, from one or more mapped files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from ....core.errors import ConfigError
from ..formats.gguf_blocks import GGUFBlocks
from ..packed import PackedWeights
from .file import GGUFTensor


class GGUFTensors:
    """Maps files when a tensor of them is first read."""

    def __init__(self) -> None:
        self._mapped: dict[Path, torch.Tensor] = {}

    def packed(self, tensor: GGUFTensor) -> PackedWeights:
        """Return a view of a tensor's blocks. Dimensions before the last one count as rows."""
        shape = math.prod(tensor.shape[:-1]), tensor.shape[-1]
        blocks = self._bytes_of(tensor.path)[tensor.offset : tensor.offset + tensor.num_bytes]
        return PackedWeights(GGUFBlocks(tensor.kind), shape, (blocks.view(shape[0], -1),))

    def dequantized(self, name: str, tensor: GGUFTensor) -> torch.Tensor:
        """Read a tensor in float32. Raises ConfigError if it is of an unsupported type."""
        try:
            return self.packed(tensor).dequantize().view(tensor.shape)
        except ConfigError as error:
            raise ConfigError(f"{name} of {tensor.path}: {error}") from error

    def release(self) -> None:
        """Let go of the mapped pages, unless tensors that were read are still in use."""
        self._mapped.clear()

    def _bytes_of(self, path: Path) -> torch.Tensor:
        """Return a file's bytes. Raises ConfigError."""
        if path not in self._mapped:
            try:
                # Mode "c", copy on write, because torch warns of memory that it must not write.
                mapped = np.memmap(path, dtype=np.uint8, mode="c")
            except (OSError, ValueError) as error:
                raise ConfigError(f"{path} cannot be mapped into memory: {error}") from error
            self._mapped[path] = torch.from_numpy(mapped)
        return self._mapped[path]
