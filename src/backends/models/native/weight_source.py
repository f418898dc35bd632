"""Takes tensors from a checkpoint for the loader, and checks that all of them are taken."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import TypeVar

import torch

from ....core.errors import ConfigError
from ...linear.base import LinearBackend, LinearSpec
from ...weights.checkpoint import Checkpoint
from ...weights.packed import PackedWeights, WeightFormat, Weights, stack
from .dequantized import Dequantized, dequantized

W = TypeVar("W", torch.Tensor, Weights)

_RECOMPUTED = re.compile(r".*rotary_emb\.inv_freq")
"""Tensors of old checkpoints that are ignored because the configuration determines them."""

_RELEASED_BYTES = 128 << 20
"""Bytes of files that stay mapped at most, apart from one layer. To open a file again takes a
millisecond."""


class WeightSource:
    """Takes tensors from the checkpoint, checks their shapes and tracks which are left."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        keeper: LinearBackend | None,
    ) -> None:
        """`keeper` says which formats stay packed; None: none."""
        self._checkpoint = checkpoint
        self._keeper = keeper
        self._spec = LinearSpec(dtype=dtype, device=device)
        self._left = set(checkpoint.tensor_names())
        self._bytes_read = 0
        self.dequantized = Dequantized()

    def has(self, name: str) -> bool:
        return name in self._left

    def leave(self, name: str) -> None:
        """Mark a tensor as used, because other code reads it."""
        self._left.discard(name)

    def is_packed(self, name: str) -> bool:
        """Whether a tensor's numbers are packed in the checkpoint."""
        self._require(name)
        return not isinstance(self._checkpoint.stored(name).format, torch.dtype)

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Read one tensor in the decoder's type, on its device."""
        self._require(name)
        return self._convert(self._mark(name, shape, self._checkpoint.tensor(name)))

    def take_float32(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Read one tensor in float32, on the decoder's device."""
        self._require(name)
        tensor = self._mark(name, shape, self._checkpoint.tensor(name))
        return tensor.to(self._spec.device, torch.float32)

    def take_stacked(self, parts: Sequence[tuple[str, tuple[int, ...]]]) -> torch.Tensor:
        """Read several tensors as one, stacked along their first dimension."""
        return torch.cat([self.take(name, shape) for name, shape in parts])

    def take_matrix(self, name: str, shape: tuple[int, int]) -> Weights:
        """Read one matrix of a product; it stays packed if its format is kept."""
        return self._take(name, shape, is_multiplied=True)

    def take_rows(self, name: str, shape: tuple[int, int]) -> Weights:
        """Read a matrix whose rows are looked up; it stays packed if its format is kept."""
        return self._take(name, shape, is_multiplied=False)

    def _take(self, name: str, shape: tuple[int, int], *, is_multiplied: bool) -> Weights:
        self._require(name)
        matrix = self._mark(name, shape, self._checkpoint.matrix(name))
        if isinstance(matrix, torch.Tensor):
            return self._convert(matrix)
        if self._is_kept(matrix):
            return matrix
        if is_multiplied:
            self.dequantized.add(matrix, self._spec.dtype)
        return self.dequantize(matrix)

    def take_segments(self, parts: Sequence[tuple[str, tuple[int, int]]]) -> list[Weights]:
        """Read matrices of one input. Adjacent matrices of one format become one segment."""
        return _merge([self.take_matrix(name, shape) for name, shape in parts])

    def dequantize(self, matrix: PackedWeights) -> torch.Tensor:
        """Return a matrix in the decoder's type, on its device."""
        return self._convert(dequantized(matrix, self._spec.dtype))

    def empty(self, *shape: int) -> torch.Tensor:
        """A tensor in the decoder's type, on its device."""
        return torch.empty(shape, dtype=self._spec.dtype, device=self._spec.device)

    def release(self) -> None:
        """Let go of the pages of the files when many were read since the last time."""
        if self._bytes_read > _RELEASED_BYTES:
            self._bytes_read = 0
            self._checkpoint.release()

    def refuse_leftovers(self) -> None:
        """Raise ConfigError for tensors that the decoder does not use: its output would differ."""
        left = sorted(name for name in self._left if not self._changes_nothing(name))
        if left:
            raise ConfigError(
                f"{self._checkpoint.path} has {len(left)} tensors that "
                f"{self._checkpoint.config.architecture} with this configuration does not use, "
                f"so its output would be wrong: {', '.join(left[:5])}"
            )

    def _changes_nothing(self, name: str) -> bool:
        """Whether a tensor can be left out. AutoGPTQ gave every matrix a bias, mostly of zeros."""
        if _RECOMPUTED.fullmatch(name):
            return True
        return name.endswith(".bias") and not bool(self._checkpoint.tensor(name).any())

    def _is_kept(self, matrix: PackedWeights) -> bool:
        keeper = self._keeper
        return keeper is not None and keeper.keeps(self._spec, matrix.format)

    def _require(self, name: str) -> None:
        if name not in self._left:
            raise ConfigError(f"{self._checkpoint.path} lacks the tensor {name}")

    def _mark(self, name: str, shape: tuple[int, ...], weights: W) -> W:
        """Check a tensor's shape and type, and mark it as taken."""
        self._left.discard(name)
        self._bytes_read += _num_bytes(weights)
        if tuple(weights.shape) != shape:
            raise ConfigError(
                f"{name} of {self._checkpoint.path} has shape {list(weights.shape)}; "
                f"the configuration requires {list(shape)}"
            )
        if isinstance(weights, torch.Tensor) and not _is_float(weights):
            raise ConfigError(
                f"{name} of {self._checkpoint.path} has type {weights.dtype}, which is not "
                "supported; supported: float32, bfloat16 and float16"
            )
        return weights

    def _convert(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._spec.device, self._spec.dtype)


def _num_bytes(weights: Weights) -> int:
    return weights.nbytes if isinstance(weights, torch.Tensor) else weights.num_bytes


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.itemsize > 1


def _merge(segments: Sequence[Weights]) -> list[Weights]:
    """Stack neighbouring segments of one format, and neighbouring tensors."""
    merged: list[Weights] = []
    for format, group in groupby(segments, key=_format_of):
        if format is None:
            tensors = [one for one in group if isinstance(one, torch.Tensor)]
            merged.append(tensors[0] if len(tensors) == 1 else torch.cat(tensors))
        else:
            merged.append(stack([one for one in group if isinstance(one, PackedWeights)]))
    return merged


def _format_of(weights: Weights) -> WeightFormat | None:
    return weights.format if isinstance(weights, PackedWeights) else None
