"""A checkpoint whose matrices are quantized or kept in float16 while they are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import torch

from ...core.errors import ConfigError
from .checkpoint import Checkpoint
from .checkpoint_decorator import CheckpointDecorator
from .formats.gguf_blocks import GGUFBlocks
from .formats.quantizing import ROUND_TO_FLOAT16, kind_on_load, quantize
from .packed import StoredTensor, WeightFormat, Weights
from .quantized_cache.file import Matrices
from .quantized_cache.matrices import CachedMatrices

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_HEAD_KIND = "q8_0"
"""The head needs more bits than other matrices; published files also give it more."""
_MATRIX = re.compile(r".*_proj\.weight|.*\.experts\.\d+\..*\.weight")
_ALL_EXPERTS = re.compile(r".*\.experts\.(gate_up|down)_proj")
"""transformers' tensors of all experts of a layer, which are transposed: [x, in, out]."""


class QuantizedOnLoad(CheckpointDecorator):
    """Quantizes the matrices of another checkpoint.

    Embeddings, norms, biases and routers of experts stay as they are, because only products gain by
    fewer bits. So a model with tied embeddings gets a head of its own. Only in float16, embeddings
    are kept like heads.
    """

    def __init__(
        self,
        inner: Checkpoint,
        name: str,
        cache_limit: int | None = 0,
        only: torch.dtype | None = None,
    ) -> None:
        """`name`: a key of QUANTIZE_ON_LOAD, or ROUND_TO_FLOAT16. `only`: the type of the matrices
        that are quantized; None: all.

        `cache_limit`: bytes of the cache of quantized models; 0: no cache; None: chosen by the
        free disk.
        """
        super().__init__(inner)
        self._name = name
        self._cache_limit = cache_limit
        self._only = only
        self._rounds = name == ROUND_TO_FLOAT16
        self._names = tuple(inner.tensor_names())
        is_tied = inner.config.has_head and inner.config.tie_word_embeddings
        is_tied = (
            is_tied and not self._rounds and _EMBEDDING in self._names and _HEAD not in self._names
        )
        self._head = _EMBEDDING if is_tied else _HEAD
        """The inner checkpoint's name of the head."""
        if is_tied and self._format(_HEAD) is not None:
            self._names = *self._names, _HEAD

    @property
    def changes_anything(self) -> bool:
        """Whether any matrix is quantized: matrices of a quantized file stay as they are."""
        return any(self._format(name) is not None for name in self.tensor_names())

    @property
    def dtype(self) -> torch.dtype | WeightFormat:
        """The format of the first matrix that is quantized."""
        for name in sorted(self.tensor_names()):
            format = self._format(name)
            if format is not None and name != _HEAD:
                return format
        return self._inner.dtype

    def tensor_names(self) -> Sequence[str]:
        return self._names

    def stored(self, name: str) -> StoredTensor:
        """Describe a tensor as it will be after it is quantized."""
        inner, format = self._inner.stored(self._source(name)), self._format(name)
        if format is None:
            return inner
        shape, num_inputs = inner.shape, _num_inputs(name, inner)
        num_rows = inner.num_elements // num_inputs
        if _ALL_EXPERTS.fullmatch(name):
            shape = num_rows, num_inputs  # as `matrix` returns it
        return StoredTensor(shape, format, num_rows * format.row_bytes(num_inputs))

    def tensor(self, name: str) -> torch.Tensor:
        return self._inner.tensor(self._source(name))

    def matrix(self, name: str) -> Weights:
        """Read a matrix, and quantize it unless it is packed already."""
        format = self._format(name)
        if format is None:
            return self._inner.matrix(name)
        if self._cached is None:
            return self._quantize(name, format)
        return self._cached.matrix(name, lambda: self._quantize(name, format))

    def release(self) -> None:
        self._inner.release()
        if self._cached is not None:
            self._cached.release()

    @cached_property
    def _cached(self) -> CachedMatrices | None:
        """The cache, which is opened when the first matrix is read. None: it is not used."""
        if self._cache_limit == 0:
            return None
        return CachedMatrices(self._inner, self._name, self._matrices(), self._cache_limit)

    def _matrices(self) -> Matrices:
        """Format and shape of every matrix that a loader reads, and that is quantized."""
        found = {}
        for name in self.tensor_names():
            format = self._format(name)
            if format is None:
                continue
            stored = self._inner.stored(self._source(name))
            num_inputs = _num_inputs(name, stored)
            found[name] = format, (stored.num_elements // num_inputs, num_inputs)
        return found

    def _quantize(self, name: str, format: GGUFBlocks) -> Weights:
        matrix = self._inner.matrix(self._source(name))
        if not isinstance(matrix, torch.Tensor):
            return matrix
        if _ALL_EXPERTS.fullmatch(name):
            matrix = matrix.transpose(1, 2).flatten(0, 1)
        try:
            return quantize(matrix, format.kind)
        except ConfigError as error:
            raise ConfigError(f"{name} of {self.path}: {error}") from error

    def _format(self, name: str) -> GGUFBlocks | None:
        """The format of a matrix that is quantized; None for other tensors."""
        is_head, is_all = self._is_end(name), _ALL_EXPERTS.fullmatch(name) is not None
        if not (is_head or is_all or _MATRIX.fullmatch(name)):
            return None
        stored = self._inner.stored(self._source(name))
        num_dims = (3,) if is_all else (2, 3)
        if len(stored.shape) not in num_dims or not isinstance(stored.format, torch.dtype):
            return None
        if stored.num_elements == 0:  # the loader refuses its shape
            return None
        if self._only not in (None, stored.format):
            return None
        num_inputs = _num_inputs(name, stored)
        is_finer = is_head and not self._rounds
        kind = kind_on_load(_HEAD_KIND if is_finer else self._name, num_inputs)
        return None if kind is None else GGUFBlocks(kind)

    def _is_end(self, name: str) -> bool:
        return name == _HEAD or (self._rounds and name == _EMBEDDING)

    def _source(self, name: str) -> str:
        """The inner checkpoint's name of a tensor."""
        return self._head if name == _HEAD else name


def _num_inputs(name: str, stored: StoredTensor) -> int:
    return stored.shape[1 if _ALL_EXPERTS.fullmatch(name) else -1]
