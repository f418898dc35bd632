"""A GGUF file as a checkpoint: it renames, reorders and dequantizes tensors for the loader."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType

from ....core.errors import ConfigError
from ..config.model_config import ModelConfig
from ..config.sampling_defaults import check_sampling_defaults
from ..formats.gguf_blocks import GGUFBlocks
from ..packed import PackedWeights, StoredTensor, WeightFormat, Weights
from .config import find_row, from_gguf_metadata
from .file import GGUFFile, GGUFTensor
from .names import CONFIGURING, GGUFNames
from .parts import part_stem, read_gguf_model
from .stop_tokens import stop_token_ids
from .tensors import GGUFTensors

_MAX_FREQUENCIES = 4096
"""The number for heads of 8192 elements, which is larger than any model has."""
_QUANTIZATION_SUFFIX = re.compile(r"[.-](i?q\d\w*|tq\d\w*|b?f16|f32|mxfp4|nvfp4)$", re.IGNORECASE)
_SAMPLING_KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_DTYPES = {
    GGMLQuantizationType.BF16: torch.bfloat16,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F64: torch.float32,
}


class GGUFCheckpoint:
    """A GGUF model with any tensor type that the gguf package can dequantize; see Checkpoint."""

    def __init__(self, path: Path, file: GGUFFile | None = None) -> None:
        """Open a model by its file, or by any part of it. `file` is its header; None: read here.

        Raises ConfigError if it is damaged, incomplete or of an unsupported architecture.
        """
        self._file = file or read_gguf_model(path)
        self.path = self._file.path
        self._read = GGUFTensors()
        self._names = GGUFNames(find_row(self._file.metadata, str(path))[0])
        self._tensors = {
            self._names.to_hf(name): tensor
            for name, tensor in self._file.tensors.items()
            if name not in CONFIGURING
        }
        configuring = sum(name in self._file.tensors for name in CONFIGURING)
        if len(self._tensors) + configuring < len(self._file.tensors):
            raise ConfigError(f"{self.path} has a tensor twice, under two names")
        self.config = self._read_config()
        self.sampling_defaults = self._read_sampling_defaults()

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._file.metadata

    @property
    def name(self) -> str:
        """The file's name without the quantization, such as "SmolLM2-135M-Instruct"."""
        return _QUANTIZATION_SUFFIX.sub("", part_stem(self.path))

    @property
    def files(self) -> Mapping[Path, int]:
        """See Checkpoint. A header ends where the first tensor of its file begins."""
        found = {self.path: self.path.stat().st_size}
        for tensor in self._file.tensors.values():
            found[tensor.path] = min(tensor.offset, found.get(tensor.path, tensor.offset))
        return found

    @property
    def dtype(self) -> torch.dtype | WeightFormat:
        """The type or format of the layers' matrices, taken from the first one."""
        names = ("blk.0.attn_q.weight", "blk.0.attn_qkv.weight")
        kinds = [self._file.tensors[name].kind for name in names if name in self._file.tensors]
        if not kinds:
            return torch.float32
        return _DTYPES.get(kinds[0]) or GGUFBlocks(kinds[0])

    @property
    def quantization(self) -> str:
        return "gguf"

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return stop_token_ids(self._file.metadata)

    def tensor_names(self) -> Sequence[str]:
        return tuple(self._tensors)

    def stored(self, name: str) -> StoredTensor:
        tensor = self._find(name)
        format = _DTYPES.get(tensor.kind) or GGUFBlocks(tensor.kind)
        return StoredTensor(tensor.shape, format, tensor.num_bytes)

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor in float32. Raises ConfigError if it is missing or of unsupported type."""
        tensor = self._read.dequantized(name, self._find(name))
        tensor = self._names.in_order(name, tensor, self.config)
        return self._names.without_offset(name, tensor)

    def matrix(self, name: str) -> Weights:
        """Read a matrix as it is stored: a tensor in float32, or packed. Raises ConfigError."""
        tensor = self._tensors.get(name)
        if tensor is None or len(tensor.shape) not in (2, 3) or tensor.kind in _DTYPES:
            read = self.tensor(name)
            return read.flatten(0, 1) if read.dim() == 3 else read
        packed = self._read.packed(tensor)
        blocks = self._names.in_order(name, packed.planes[0], self.config)
        return PackedWeights(packed.format, packed.shape, (blocks,))

    def release(self) -> None:
        self._read.release()

    def _find(self, name: str) -> GGUFTensor:
        if name not in self._tensors:
            raise ConfigError(f"{self.path} lacks the tensor {name}")
        return self._tensors[name]

    def _read_config(self) -> ModelConfig:
        divisors = {
            name: self._read_divisors(name) for name in CONFIGURING if name in self._file.tensors
        }
        return from_gguf_metadata(
            self._file.metadata,
            tensor_shapes={name: tensor.shape for name, tensor in self._file.tensors.items()},
            divisors=divisors,
            source=str(self.path),
        )

    def _read_sampling_defaults(self) -> dict[str, float | int]:
        metadata = self._file.metadata
        found = {
            name: metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING_KEYS.items()
        }
        return check_sampling_defaults(found, source=str(self.path))

    def _read_divisors(self, name: str) -> tuple[float, ...]:
        stored = self._file.tensors[name]
        if len(stored.shape) != 1 or stored.shape[0] > _MAX_FREQUENCIES:
            raise ConfigError(f"{name} of {self.path} has shape {list(stored.shape)}")
        return tuple(self._read.dequantized(name, stored).tolist())
