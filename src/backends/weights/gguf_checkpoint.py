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
from .gguf_config import from_gguf_metadata
from .gguf_file import GGUFTensor
from .gguf_parts import part_stem, read_gguf_model
from .model_config import ModelConfig
from .packed import PackedWeights, StoredTensor, WeightFormat, Weights
from .sampling_defaults import check_sampling_defaults

_FREQUENCIES = "rope_freqs.weight"
_MAX_FREQUENCIES = 4096
"""No model has heads of twice that size."""
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_PERMUTED = re.compile(r".*\.self_attn\.([qk])_proj\.(weight|bias)")
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
    """A GGUF model with any tensor type that the gguf package can dequantize; see Checkpoint."""

    def __init__(self, path: Path) -> None:
        """Open a model by its file, or by any part of it.

        Raises ConfigError if it is damaged, incomplete or of an unsupported architecture.
        """
        self._file = read_gguf_model(path)
        self.path = self._file.path
        self._mapped: dict[Path, torch.Tensor] = {}
        self._tensors = {
            _rename(name): tensor
            for name, tensor in self._file.tensors.items()
            if name != _FREQUENCIES
        }
        if len(self._tensors) + (_FREQUENCIES in self._file.tensors) < len(self._file.tensors):
            raise ConfigError(f"{self.path} has a tensor twice, under two names")
        self._is_permuted = self._file.metadata.get("general.architecture") == "llama"
        self.config = self._read_config()
        self.sampling_defaults = self._read_sampling_defaults()

    @property
    def name(self) -> str:
        """The file's name without the quantization, such as "SmolLM2-135M-Instruct"."""
        return _QUANTIZATION_SUFFIX.sub("", part_stem(self.path))

    @property
    def dtype(self) -> torch.dtype | WeightFormat:
        """The type or format of the layers' matrices, taken from the first one."""
        matrix = self._file.tensors.get("blk.0.attn_q.weight")
        if matrix is None:
            return torch.float32
        return _DTYPES.get(matrix.kind) or GGUFBlocks(matrix.kind)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        values = (self._file.metadata.get(f"tokenizer.ggml.{key}") for key in _EOS_KEYS)
        return tuple(dict.fromkeys(value for value in values if isinstance(value, int)))

    def tensor_names(self) -> Sequence[str]:
        return tuple(self._tensors)

    def stored(self, name: str) -> StoredTensor:
        """See Checkpoint."""
        tensor = self._find(name)
        format = _DTYPES.get(tensor.kind) or GGUFBlocks(tensor.kind)
        return StoredTensor(tensor.shape, format, tensor.num_bytes)

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor in float32. Raises ConfigError if it is missing or of unsupported type."""
        return self._in_order(name, self._dequantize(name, self._find(name)))

    def matrix(self, name: str) -> Weights:
        """Read a matrix as it is stored: a tensor in float32, or packed. Raises ConfigError."""
        tensor = self._tensors.get(name)
        if tensor is None or len(tensor.shape) != 2 or tensor.kind in _DTYPES:
            return self.tensor(name)
        packed = self._packed(tensor)
        blocks = self._in_order(name, packed.planes[0])
        return PackedWeights(packed.format, packed.shape, (blocks,))

    def _find(self, name: str) -> GGUFTensor:
        if name not in self._tensors:
            raise ConfigError(f"{self.path} lacks the tensor {name}")
        return self._tensors[name]

    def _in_order(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor with its rows in transformers' order."""
        match = _PERMUTED.fullmatch(name) if self._is_permuted else None
        if match is None:
            return tensor
        num_heads = self.config.num_heads if match[1] == "q" else self.config.num_kv_heads
        if tensor.shape[0] % (2 * num_heads):
            raise ConfigError(
                f"{name} of {self.path} has {tensor.shape[0]} rows, which {num_heads} heads cannot "
                "share"
            )
        return _unpermute(tensor, num_heads)

    def _packed(self, tensor: GGUFTensor) -> PackedWeights:
        """Return a view of a tensor's blocks. Dimensions before the last one count as rows."""
        shape = math.prod(tensor.shape[:-1]), tensor.shape[-1]
        blocks = self._bytes_of(tensor.path)[tensor.offset : tensor.offset + tensor.num_bytes]
        return PackedWeights(GGUFBlocks(tensor.kind), shape, (blocks.view(shape[0], -1),))

    def _bytes_of(self, path: Path) -> torch.Tensor:
        """Return a file's bytes, mapped when they are first used. Raises ConfigError."""
        if path not in self._mapped:
            try:
                # Mode "c", copy on write, because torch warns of memory that it must not write.
                mapped = np.memmap(path, dtype=np.uint8, mode="c")
            except (OSError, ValueError) as error:
                raise ConfigError(f"{path} cannot be mapped into memory: {error}") from error
            self._mapped[path] = torch.from_numpy(mapped)
        return self._mapped[path]

    def _dequantize(self, name: str, tensor: GGUFTensor) -> torch.Tensor:
        try:
            return self._packed(tensor).dequantize().view(tensor.shape)
        except ConfigError as error:
            raise ConfigError(f"{name} of {self.path} cannot be read: {error}") from error

    def _read_config(self) -> ModelConfig:
        divisors = None
        if _FREQUENCIES in self._file.tensors:
            stored = self._file.tensors[_FREQUENCIES]
            if len(stored.shape) != 1 or stored.shape[0] > _MAX_FREQUENCIES:
                raise ConfigError(f"{_FREQUENCIES} of {self.path} has shape {list(stored.shape)}")
            divisors = tuple(self._dequantize(_FREQUENCIES, stored).tolist())
        return from_gguf_metadata(
            self._file.metadata,
            tensor_shapes={name: tensor.shape for name, tensor in self._file.tensors.items()},
            frequency_divisors=divisors,
            source=str(self.path),
        )

    def _read_sampling_defaults(self) -> dict[str, float | int]:
        metadata = self._file.metadata
        found = {
            name: metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING_KEYS.items()
        }
        return check_sampling_defaults(found, source=str(self.path))


def _rename(name: str) -> str:
    """Return transformers' name; an unknown name stays as it is, and the loader refuses it."""
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        return _TOP_NAMES.get(name, name)
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def _unpermute(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo llama.cpp's reordering of the rows of q and k.

    For the rotation llama.cpp pairs neighbouring rows of a head, and transformers pairs a row of
    the first half with a row of the second half.
    """
    pairs = tensor.reshape(num_heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
