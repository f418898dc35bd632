"""The way in which a quantization method stores a matrix in tensors of a safetensors file."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import torch

from ....core.errors import ConfigError
from ..config.fields import Fields
from ..packed import PackedWeights

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
"""The types that scales can have."""
OF_ACTIVATIONS = tuple(
    f".{of}_{part}" for of in ("input", "output", "q", "k", "v") for part in ("scale", "zero_point")
)
"""Endings of tensors for quantized activations. They are ignored: activations are not quantized."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of one quantized matrix, by the endings of their names."""

    tensors: Mapping[str, torch.Tensor]

    def need(self, ending: str, *dtypes: torch.dtype, dims: int = 2) -> torch.Tensor:
        """Return a tensor. Raises ConfigError if it is missing, and like `checked`."""
        tensor = self.tensors.get(ending)
        if tensor is None:
            raise ConfigError(f"its part {ending} is missing")
        return checked(tensor, ending, *dtypes, dims=dims)

    def optional(self, ending: str, *dtypes: torch.dtype, dims: int = 2) -> torch.Tensor | None:
        """Return a tensor, or None if it is missing. Raises ConfigError like `need`."""
        return self.need(ending, *dtypes, dims=dims) if ending in self.tensors else None


def checked(tensor: torch.Tensor, ending: str, *dtypes: torch.dtype, dims: int = 2) -> torch.Tensor:
    """Return the tensor. Raises ConfigError if it is of another type or rank, or empty."""
    if tensor.dtype not in dtypes or tensor.ndim != dims:
        names = " or ".join(map(_short, dtypes))
        raise ConfigError(
            f"its part {ending} must be {names} with {dims} dimensions, "
            f"not {_short(tensor.dtype)} {list(tensor.shape)}"
        )
    if tensor.numel() == 0:
        raise ConfigError(f"its part {ending} is empty: {list(tensor.shape)}")
    return tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A quantization method with the settings of one checkpoint."""

    name: str
    """transformers' `quant_method`, which is also the value of --quantization."""
    markers: tuple[str, ...]
    """Each quantized matrix has exactly one tensor whose name has one of these endings."""
    endings: tuple[str, ...]
    """Endings of all tensors that a quantized matrix can have."""
    read: Callable[[Parts], PackedWeights]
    """Raises ConfigError if the tensors do not fit together."""
    restore: Callable[[Parts, PackedWeights], torch.Tensor] = lambda _, weights: (
        weights.dequantize()
    )
    """Makes the tensor that transformers has, in float32."""
    deciding: Mapping[str, Callable[[torch.Tensor], Hashable]] = field(default_factory=dict)
    """By ending: computes from a tensor's numbers what they change in shape and format of the
    matrix."""
    matrix_ending: str = ".weight"
    """The ending that replaces a marker in transformers' name of the matrix."""


def is_ordered(group_of: torch.Tensor) -> bool:
    """Whether the inputs of a group follow each other: then no order need be kept."""
    return bool((group_of[1:] >= group_of[:-1]).all())


def require(fields: Fields, name: str, supported: tuple[object, ...], default: object) -> None:
    """Raise ConfigError unless a field has one of the supported values."""
    value = fields.get(name)
    value = default if value is None else value
    if value not in supported or isinstance(value, bool) is not isinstance(supported[0], bool):
        raise ConfigError(
            f"{fields.source} has {name} {value!r:.80}, which is not supported; supported: "
            f"{', '.join(map(str, supported))}"
        )


def read_group_size(fields: Fields, name: str = "group_size") -> int | None:
    """Return the number of inputs per group. None, in files -1: all inputs of a row.

    Raises ConfigError if it is no such number.
    """
    size = fields.integer(name)
    if size != -1 and size < 1:
        raise ConfigError(f"{name} in {fields.source} must be positive or -1, got {size}")
    return None if size == -1 else size


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
