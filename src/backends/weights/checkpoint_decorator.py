"""A checkpoint that changes some answers of another one, for example the form of its matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from .checkpoint import Checkpoint
from .config.model_config import ModelConfig
from .packed import StoredTensor, WeightFormat, Weights


def as_stored(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint that decorators change: it describes the files."""
    while isinstance(checkpoint, CheckpointDecorator):
        checkpoint = checkpoint.inner
    return checkpoint


def stored_dtype(checkpoint: Checkpoint) -> torch.dtype | WeightFormat:
    """The type of the first projection in the files, which config.json may state wrongly."""
    stored = as_stored(checkpoint)
    names = [name for name in stored.tensor_names() if name.endswith("_proj.weight")]
    return stored.stored(min(names)).format if names else stored.dtype


class CheckpointDecorator:
    """Answers as another checkpoint does; see Checkpoint. Subclasses change some of the methods.

    Methods are independent: a decorator that changes `matrix` must also change `stored` and
    `dtype`, which describe it.
    """

    def __init__(self, inner: Checkpoint) -> None:
        self._inner = inner
        self.config: ModelConfig = inner.config

    @property
    def inner(self) -> Checkpoint:
        return self._inner

    @property
    def path(self) -> Path:
        return self._inner.path

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def files(self) -> Mapping[Path, int]:
        return self._inner.files

    @property
    def dtype(self) -> torch.dtype | WeightFormat:
        return self._inner.dtype

    @property
    def quantization(self) -> str | None:
        return self._inner.quantization

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._inner.eos_token_ids

    @property
    def sampling_defaults(self) -> Mapping[str, float | int]:
        return self._inner.sampling_defaults

    def tensor_names(self) -> Sequence[str]:
        return self._inner.tensor_names()

    def stored(self, name: str) -> StoredTensor:
        return self._inner.stored(name)

    def tensor(self, name: str) -> torch.Tensor:
        return self._inner.tensor(name)

    def matrix(self, name: str) -> Weights:
        return self._inner.matrix(name)

    def release(self) -> None:
        self._inner.release()
