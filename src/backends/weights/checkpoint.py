"""A model on disk, whatever its format: its configuration, and its tensors by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from gguf import GGMLQuantizationType

from ...core.errors import ConfigError
from .model_config import ModelConfig
from .quantized import UnreadMatrix

SUPPORTED = (
    "a Hugging Face directory (config.json and *.safetensors) or a .gguf file; "
    "to fetch one: hf download OWNER/NAME --local-dir DIR"
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class Checkpoint(Protocol):
    """Read access to one model's weights. Tensor names are transformers', whatever the format."""

    @property
    def path(self) -> Path: ...
    @property
    def name(self) -> str:
        """Short name of the model."""
        ...

    @property
    def config(self) -> ModelConfig: ...
    @property
    def dtype(self) -> torch.dtype | GGMLQuantizationType:
        """The precision that the matrices were published in; a GGUF type if they are quantized.
        `--dtype auto` goes by it."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def sampling_defaults(self) -> Mapping[str, float | int]:
        """The publisher's sampling defaults; keys are fields of SamplingParams."""
        ...

    def tensor_names(self) -> Sequence[str]:
        """For example "model.layers.0.self_attn.q_proj.weight"."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor on the CPU, dequantized. Raises ConfigError when it is missing or damaged."""
        ...

    def quantized(self, name: str) -> UnreadMatrix | None:
        """A quantized matrix, to be read as it is packed; None for any other tensor."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a Hugging Face directory or a GGUF file; tensors are read when they are asked for.

    Raises ConfigError that says what was looked for and what is supported.
    """
    path = path.expanduser()
    if path.is_dir():
        from .safetensors_checkpoint import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    _check_file(path)
    from .gguf_checkpoint import GGUFCheckpoint

    return GGUFCheckpoint(path)


def _check_file(path: Path) -> None:
    if not path.exists():
        raise ConfigError(f"no model at {path}: no such file or directory. Supported: {SUPPORTED}")
    if path.suffix in _PICKLES:
        raise ConfigError(
            f"{path} is a pickle, which can run any program when it is loaded, so it is never "
            f"opened. Supported: {SUPPORTED}"
        )
    if path.suffix == ".safetensors":
        raise ConfigError(
            f"{path} holds weights only: name its directory, where config.json is, instead"
        )
    if path.suffix != ".gguf":
        raise ConfigError(f"{path} is not a model that can be read. Supported: {SUPPORTED}")
