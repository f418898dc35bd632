"""One rank's part of the experts of a model.

With tensor parallelism, a rank has some columns of every expert. With expert parallelism, it has
some experts as a whole. Shape suffixes: x experts, o outputs, i inputs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import torch

from ...core.errors import ConfigError
from .checkpoint import Checkpoint
from .checkpoint_decorator import CheckpointDecorator
from .config.model_config import ExpertsConfig
from .packed import StoredTensor, Weights, stack
from .sharding import Cut, Shard, ShardedCheckpoint, divide, unit_of_columns

_NAME = re.compile(
    r".*\.experts(?P<index>\.\d+)?\.(?P<matrix>\w+_proj|w[123])(?P<bias>[._]bias)?(?P<weight>\.weight)?"
)
"""A tensor of one expert, or (without `index`) of all experts of a layer."""
_DOWN = ("down_proj", "w2")
"""Matrices whose inputs are the experts' columns. In all others, the outputs are the columns."""


def part_of(checkpoint: Checkpoint, shard: Shard) -> Checkpoint:
    """One rank's part of a model, with or without experts. Raises ConfigError if the model cannot
    be divided."""
    if checkpoint.config.experts is not None:
        checkpoint = ExpertsPart(checkpoint, shard)
    return ShardedCheckpoint(checkpoint, shard)


class ExpertsPart(CheckpointDecorator):
    """Shows one rank's part of the experts. All other tensors stay whole."""

    def __init__(self, inner: Checkpoint, shard: Shard) -> None:
        """Raises ConfigError if the experts cannot be divided."""
        super().__init__(inner)
        config = inner.config.experts
        assert config is not None
        number, columns = config.num_experts, config.intermediate_size
        self._adds_biases = shard.rank == 0 or shard.whole_experts
        self._experts, self._columns = Cut(number, 0, number), Cut(columns, 0, columns)
        if shard.whole_experts:
            self._experts = divide_experts(config, shard)
            part = replace(config, own=(self._experts.start, self._experts.end))
        else:
            self._columns = divide(columns, unit_of_columns(inner, _is_down, columns, shard), shard)
            part = replace(config, intermediate_size=self._columns.length)
        self.config = replace(inner.config, experts=part)
        self._names = [name for name in inner.tensor_names() if self._has(name)]

    def tensor_names(self) -> Sequence[str]:
        return self._names

    def stored(self, name: str) -> StoredTensor:
        inner, found = self._inner.stored(name), _NAME.fullmatch(name)
        if found is None:
            return inner
        shape = list(inner.shape)
        if found["index"] is None:
            shape[0] = shape[0] // self._experts.total * self._experts.length
        dim = _columns_dim(found, len(shape))
        if dim is not None:
            shape[dim] = shape[dim] // self._columns.total * self._columns.length
        return inner.resized(shape)

    def tensor(self, name: str) -> torch.Tensor:
        found = _NAME.fullmatch(name)
        tensor = self._inner.tensor(name)
        return tensor if found is None else self._cut(tensor, found)

    def matrix(self, name: str) -> Weights:
        found = _NAME.fullmatch(name)
        matrix = self._inner.matrix(name)
        if found is None:
            return matrix
        if found["index"] is None and len(matrix.shape) == 2:
            return self._cut_rows(matrix, found)
        if isinstance(matrix, torch.Tensor):
            return self._cut(matrix, found)
        dim = _columns_dim(found, 2)
        assert dim is not None
        return matrix.narrow(dim, *self._place(matrix.shape[dim]))

    def _has(self, name: str) -> bool:
        found = _NAME.fullmatch(name)
        if found is None or found["index"] is None:
            return True
        return self._experts.start <= int(found["index"][1:]) < self._experts.end

    def _cut(self, tensor: torch.Tensor, found: re.Match[str]) -> torch.Tensor:
        """A part, copied so that the memory of the whole tensor can be freed."""
        dim = _columns_dim(found, tensor.ndim)
        if found["index"] is None:
            tensor = tensor.narrow(0, self._experts.start, self._experts.length)
        if dim is not None:
            tensor = tensor.narrow(dim, *self._place(tensor.shape[dim]))
        elif not self._adds_biases:
            return torch.zeros_like(tensor)
        return tensor.clone()

    def _cut_rows(self, matrix: Weights, found: re.Match[str]) -> Weights:
        """A part of the matrices of all experts, one below the other: [x * o, i]."""
        num_rows = matrix.shape[0] // self._experts.total
        own = range(self._experts.start, self._experts.end)
        start, length = 0, num_rows
        if found["matrix"] in _DOWN:
            matrix = matrix.narrow(1, *self._place(matrix.shape[1]))
        else:
            start, length = self._place(num_rows)
        parts = [matrix.narrow(0, expert * num_rows + start, length) for expert in own]
        if isinstance(matrix, torch.Tensor):
            return torch.cat(parts)  # type: ignore[arg-type]
        return stack(parts)  # type: ignore[arg-type]

    def _place(self, size: int) -> tuple[int, int]:
        """Start and length in a dimension that has one or more entries per column."""
        factor = size // self._columns.total
        return self._columns.start * factor, self._columns.length * factor


def divide_experts(config: ExpertsConfig, shard: Shard) -> Cut:
    """The experts that a rank has as a whole. Raises ConfigError if there are too few."""
    if shard.size > config.num_experts:
        raise ConfigError(
            f"--enable-expert-parallel: the model has only {config.num_experts} experts for "
            f"{shard.size} ranks: lower --tensor-parallel-size"
        )
    return divide(config.num_experts, 1, shard)


def _columns_dim(found: re.Match[str], num_dims: int) -> int | None:
    """The dimension of the experts' columns; None if the tensor has none."""
    is_down = found["matrix"] in _DOWN
    if found["bias"] is not None:
        return None if is_down else 1
    if num_dims == 2:
        return 1 if is_down else 0
    has_outputs_first = found["weight"] is not None  # transformers' own are [x, i, o]
    return 2 if is_down is has_outputs_first else 1


def _is_down(name: str) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and found["matrix"] in _DOWN and found["bias"] is None
