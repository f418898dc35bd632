"""The interface of a model on disk, for all formats: its configuration, and tensors by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from .config.model_config import ModelConfig
from .files.model_path import find_model
from .packed import StoredTensor, WeightFormat, Weights


class Checkpoint(Protocol):
    """Read access to one model's weights. In every format, tensors have transformers' names."""

    @property
    def path(self) -> Path: ...
    @property
    def name(self) -> str:
        """The model's short name."""
        ...

    @property
    def files(self) -> Mapping[Path, int]:
        """The files of the weights, and the size in bytes of each one's header.

        Empty: the weights are not in files.
        """
        ...

    @property
    def config(self) -> ModelConfig: ...
    @property
    def dtype(self) -> torch.dtype | WeightFormat:
        """The type of the published matrices; their format if they are packed.

        `--dtype auto` chooses the precision by it.
        """
        ...

    @property
    def quantization(self) -> str | None:
        """The method that quantized the weights, a value of --quantization. None: none did."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def sampling_defaults(self) -> Mapping[str, float | int]:
        """The publisher's sampling defaults; keys are fields of SamplingParams."""
        ...

    def tensor_names(self) -> Sequence[str]:
        """Return all names, for example "model.layers.0.self_attn.q_proj.weight"."""
        ...

    def stored(self, name: str) -> StoredTensor:
        """Describe a tensor without reading it. Raises ConfigError if it is missing or damaged."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor to the CPU, dequantized. Raises ConfigError if it is missing or damaged."""
        ...

    def matrix(self, name: str) -> Weights:
        """Read a matrix as it is stored: packed, or the same as `tensor`. Raises ConfigError.

        The matrices of several experts, [x, out, in], are read as one, [x * out, in].
        """
        ...

    def release(self) -> None:
        """Let go of the files' mapped pages, unless tensors that were read are still in use."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a Hugging Face directory or a GGUF model; tensors are read on demand.

    A GGUF model is named by its file, by any part of it, or by a directory that holds nothing else.
    Raises ConfigError if that fails; the message says what is supported.
    """
    path = find_model(path)
    if path.is_dir():
        from .huggingface.checkpoint import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    from .gguf.checkpoint import GGUFCheckpoint

    return GGUFCheckpoint(path)
