"""Reads the weights of a Hugging Face directory, in one or more safetensors files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ....core.errors import ConfigError
from ..config.fields import one_line
from ..packed import StoredTensor
from .weight_files import weight_files

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types by their names in headers."""
_MAX_NAME = 256
"""Characters of a tensor's name. Names are shown in errors."""


class SafetensorsFiles:
    """The tensors in a directory's safetensors files, read on demand."""

    def __init__(self, path: Path, rename: Callable[[str], str | None] = str) -> None:
        """Open the files of a directory. `rename` changes the names of tensors; None hides one.

        Raises ConfigError if a file is missing or damaged, or if two tensors get the same name.
        """
        self.path = path
        self._files = {file: _open(path / file) for file in weight_files(path)}
        file_of = {
            name: file for file, opened in self._files.items() for name in list(opened.keys())
        }
        self._places: dict[str, tuple[str, str]] = {}
        for name, file in file_of.items():
            if not name.isprintable() or not 0 < len(name) <= _MAX_NAME:
                raise ConfigError(f"{path / file} has a tensor with the name {name!r:.80}")
            self._add(rename(name), file, name)
        self.num_hidden = len(file_of) - len(self._places)

    def _add(self, name: str | None, file: str, stored_name: str) -> None:
        if name in self._places:
            raise ConfigError(
                f"{self.path} has {name} twice: as {self._places[name][1]} and {stored_name}"
            )
        if name is not None:
            self._places[name] = (file, stored_name)

    def header_bytes(self) -> dict[Path, int]:
        """Return the size of each file's header. Raises OSError."""
        return {self.path / file: _header_bytes(self.path / file) for file in self._files}

    def tensor_names(self) -> Sequence[str]:
        return tuple(self._places)

    def stored(self, name: str) -> StoredTensor:
        """Describe a tensor by its file's header. Raises ConfigError if it is missing."""
        file, stored_name = self._find(name)
        tensor = self._files[file].get_slice(stored_name)
        kind, shape = tensor.get_dtype(), tuple(tensor.get_shape())
        if kind not in _DTYPES:
            raise ConfigError(f"{name} in {self.path / file} has type {kind}, which is not known")
        dtype = _DTYPES[kind]
        return StoredTensor(shape, dtype, math.prod(shape) * dtype.itemsize)

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor in its stored type. Raises ConfigError if it is missing or damaged."""
        file, stored_name = self._find(name)
        try:
            tensor: torch.Tensor = self._files[file].get_tensor(stored_name)
        except SafetensorError as error:
            raise ConfigError(
                f"{name} in {self.path / file} cannot be read: {one_line(error)}"
            ) from error
        return tensor

    def release(self) -> None:
        """Unmap the files, and open them again. Tensors that were read keep their file mapped.

        Raises ConfigError if a file is gone.
        """
        self._files = {file: _open(self.path / file) for file in self._files}

    def matrix(self, name: str) -> torch.Tensor:
        return self.tensor(name)

    def _find(self, name: str) -> tuple[str, str]:
        """Return the file that has a tensor, and its name there. Raises ConfigError."""
        if name not in self._places:
            raise ConfigError(f"{self.path} lacks the tensor {name}")
        return self._places[name]


def _header_bytes(path: Path) -> int:
    """Return the size of a header: a number of 8 bytes, and the bytes of JSON that it counts."""
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def _open(path: Path) -> Any:
    """Open a file; its tensors are read on demand."""
    try:
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing: the model's download is incomplete") from error
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} cannot be read as safetensors: {one_line(error)}") from error
