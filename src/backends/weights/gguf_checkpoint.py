"""A GGUF file as a checkpoint: it renames, reorders and dequantizes tensors for the loader."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType

from ...core.errors import ConfigError
from .formats.gguf_blocks import GGUFBlocks
from .gguf_config import find_row, from_gguf_metadata
from .gguf_file import GGUFFile, GGUFTensor, read_gguf_file
from .gguf_names import CONFIGURING, GGUFNames
from .model_config import ModelConfig
from .packed import PackedWeights, WeightFormat, Weights
from .sampling_defaults import check_sampling_defaults

_QUANTIZATION_SUFFIX = re.compile(r"[.-](i?q\d\w*|tq\d\w*|b?f16|f32|mxfp4|nvfp4)$", re.IGNORECASE)
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
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
    """A GGUF file with any tensor type that the gguf package can dequantize; see Checkpoint."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises ConfigError if it is damaged, incomplete or of an unsupported model."""
        self.path = path
        self._file = read_gguf_file(path)
        _refuse_split(self._file)
        # Mode "c", copy on write, because torch warns of memory that it must not write.
        self._data = torch.from_numpy(np.memmap(path, dtype=np.uint8, mode="c"))
        self._names = GGUFNames(find_row(self._file.metadata, str(path))[0])
        self._tensors = {
            self._names.to_hf(name): tensor
            for name, tensor in self._file.tensors.items()
            if name not in CONFIGURING
        }
        self.config = self._read_config()
        self.sampling_defaults = self._read_sampling_defaults()

    @property
    def name(self) -> str:
        """The file's name without the quantization, such as "SmolLM2-135M-Instruct"."""
        return _QUANTIZATION_SUFFIX.sub("", self.path.stem)

    @property
    def dtype(self) -> torch.dtype | WeightFormat:
        """The type or format of the layers' matrices, taken from the first one."""
        names = ("blk.0.attn_q.weight", "blk.0.attn_qkv.weight")
        kinds = [self._file.tensors[name].kind for name in names if name in self._file.tensors]
        if not kinds:
            return torch.float32
        return _DTYPES.get(kinds[0]) or GGUFBlocks(kinds[0])

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        values = (self._file.metadata.get(f"tokenizer.ggml.{key}") for key in _EOS_KEYS)
        return tuple(dict.fromkeys(value for value in values if isinstance(value, int)))

    def tensor_names(self) -> Sequence[str]:
        return tuple(self._tensors)

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor in float32. Raises ConfigError if it is missing or of unsupported type."""
        if name not in self._tensors:
            raise ConfigError(f"{self.path} lacks the tensor {name}")
        tensor = self._dequantize(name, self._tensors[name])
        tensor = self._names.in_order(name, tensor, self.config)
        return self._names.without_offset(name, tensor)

    def matrix(self, name: str) -> Weights:
        """Read a matrix as it is stored: a tensor in float32, or packed. Raises ConfigError."""
        tensor = self._tensors.get(name)
        if tensor is None or len(tensor.shape) != 2 or tensor.kind in _DTYPES:
            return self.tensor(name)
        packed = self._packed(tensor)
        blocks = self._names.in_order(name, packed.planes[0], self.config)
        return PackedWeights(packed.format, packed.shape, (blocks,))

    def _packed(self, tensor: GGUFTensor) -> PackedWeights:
        """Return a view of a tensor's blocks. Dimensions before the last one count as rows."""
        shape = math.prod(tensor.shape[:-1]), tensor.shape[-1]
        blocks = self._data[tensor.offset : tensor.offset + tensor.num_bytes]
        return PackedWeights(GGUFBlocks(tensor.kind), shape, (blocks.view(shape[0], -1),))

    def _dequantize(self, name: str, tensor: GGUFTensor) -> torch.Tensor:
        try:
            return self._packed(tensor).dequantize().view(tensor.shape)
        except ConfigError as error:
            raise ConfigError(f"{name} of {self.path} cannot be read: {error}") from error

    def _read_config(self) -> ModelConfig:
        divisors = {
            name: tuple(self._dequantize(name, self._file.tensors[name]).tolist())
            for name in CONFIGURING
            if name in self._file.tensors
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


def _refuse_split(file: GGUFFile) -> None:
    count = file.metadata.get("split.count", 1)
    if count != 1:
        raise ConfigError(
            f"{file.path} is one of {count} parts of a model, which is not supported; join them "
            "with llama.cpp's llama-gguf-split --merge"
        )
