"""A Hugging Face directory as a checkpoint: config.json, and weights in safetensors files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ...core.errors import ConfigError
from ..models.hf_config import from_hf_config
from .sampling_defaults import check_sampling_defaults

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SAMPLING_KEYS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class SafetensorsCheckpoint:
    """See Checkpoint."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when a file is missing or damaged, or the model is unsupported."""
        self.path = path
        self._config = _read_json(path / "config.json", _missing_config(path))
        self._generation: dict[str, Any] = {}
        if (path / "generation_config.json").exists():
            self._generation = _read_json(path / "generation_config.json")
        self.config = from_hf_config(self._config, source=str(path / "config.json"))
        self.sampling_defaults = check_sampling_defaults(
            {name: self._generation.get(key) for key, name in _SAMPLING_KEYS.items()},
            source=str(path / "generation_config.json"),
        )
        self._files = {file: _open(path / file) for file in _weight_files(path)}
        self._file_of = {
            name: file for file, opened in self._files.items() for name in list(opened.keys())
        }

    @property
    def name(self) -> str:
        """The directory's name; in the hub's cache, where that is a hash, the model's."""
        path = self.path.resolve()
        if path.parent.name == "snapshots":
            return path.parent.parent.name.rpartition("--")[2]
        return path.name

    @property
    def dtype(self) -> torch.dtype:
        """As config.json says."""
        stated = self._config.get("dtype") or self._config.get("torch_dtype")
        return _DTYPES.get(str(stated).removeprefix("torch."), torch.float32)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """generation_config.json's, or else config.json's."""
        stated = self._generation.get("eos_token_id")
        stated = self._config.get("eos_token_id") if stated is None else stated
        ids = stated if isinstance(stated, list) else [stated]
        return tuple(i for i in ids if isinstance(i, int))

    def quantized(self, name: str) -> None:
        """None: its weights are never quantized."""

    def tensor_names(self) -> Sequence[str]:
        return tuple(self._file_of)

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor as it is stored. Raises ConfigError when it is missing or damaged."""
        if name not in self._file_of:
            raise ConfigError(f"{self.path} lacks the tensor {name}")
        file = self._file_of[name]
        try:
            tensor: torch.Tensor = self._files[file].get_tensor(name)
        except SafetensorError as error:
            raise ConfigError(f"{name} in {self.path / file} cannot be read: {error}") from error
        return tensor


def _missing_config(path: Path) -> str:
    text = f"no model in {path}: it has no config.json"
    found = sorted(file.name for file in path.glob("*.gguf"))
    return text + (f", but GGUF files; name one of them: {', '.join(found)}" if found else "")


def _read_json(path: Path, missing: str | None = None) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(missing or f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return content


def _weight_files(path: Path) -> list[str]:
    """Names of the files with weights: those that the index lists, or the only one."""
    if (path / _INDEX).exists():
        listed = _read_json(path / _INDEX).get("weight_map")
        if not isinstance(listed, dict) or not listed:
            raise ConfigError(f"{path / _INDEX} must have a weight_map")
        return sorted({_plain_name(path, file) for file in listed.values()})
    if (path / _SINGLE).exists():
        return [_SINGLE]
    text = f"no weights in {path}: looked for {_SINGLE} and {_INDEX}"
    if any(path.glob("*.bin")) or any(path.glob("*.pt*")):
        text += (
            "; its .bin or .pt files are pickles, which can run any program when they are loaded, "
            "so they are never opened: convert them to safetensors"
        )
    raise ConfigError(text)


def _plain_name(path: Path, file: Any) -> str:
    if not isinstance(file, str) or Path(file).name != file:
        raise ConfigError(f"{path / _INDEX} names {file!r}, which is not a file of its directory")
    return file


def _open(path: Path) -> Any:
    """A lazy reader; tensors are read when they are asked for."""
    try:
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing: the model's download is incomplete") from error
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} cannot be read as safetensors: {error}") from error
