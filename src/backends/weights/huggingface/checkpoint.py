"""A Hugging Face directory as a checkpoint: config.json, and weights in safetensors files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from ....core.errors import ConfigError
from ....core.log import get_logger
from ....core.settings.sampling_defaults import GENERATION_CONFIG
from ..config.model_config import ModelConfig
from ..config.sampling_defaults import check_sampling_defaults
from ..files.json_file import read_json
from ..files.safetensors_files import SafetensorsFiles
from ..packed import StoredTensor, WeightFormat, Weights
from ..quantization.methods import METHODS, ReadMethod, read_method
from ..quantization.tensors import QuantizedTensors
from .config import from_hf_config
from .multimodal import has_known_tower, is_multimodal, text_fields, text_tensor

log = get_logger("model")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TensorFiles(Protocol):
    """The tensors of a directory; see SafetensorsFiles for the methods."""

    def header_bytes(self) -> Mapping[Path, int]: ...
    def tensor_names(self) -> Sequence[str]: ...
    def stored(self, name: str) -> StoredTensor: ...
    def tensor(self, name: str) -> torch.Tensor: ...
    def matrix(self, name: str) -> Weights: ...
    def release(self) -> None: ...


MakeTensors = Callable[[str, ModelConfig, torch.dtype], TensorFiles]
"""Makes tensors that are in no file, from the model's name, its sizes and the stated type."""


class SafetensorsCheckpoint:
    """A Hugging Face directory; see Checkpoint for the methods."""

    def __init__(
        self,
        path: Path,
        config: ModelConfig | None = None,
        fields: Mapping[str, Any] | None = None,
        methods: Mapping[str, ReadMethod] = METHODS,
        make_tensors: MakeTensors | None = None,
    ) -> None:
        """Open it. `fields` are those of config.json, `config` is what they describe.

        None: they are read here. `methods` are the known quantization methods. With `make_tensors`
        no file with weights is read. Raises ConfigError if a file is missing or damaged, or not
        supported.
        """
        self.path = path
        whole = read_config(path) if fields is None else fields
        self._generation: dict[str, Any] = {}
        if (path / "generation_config.json").exists():
            self._generation = read_json(path / "generation_config.json")
        source = str(path / "config.json")
        self.config = config or from_hf_config(whole, source=source)
        self.fields = whole
        """The fields of config.json, of all parts of the model."""
        self.is_made = make_tensors is not None
        """Whether its tensors are in no file."""
        self._config, _ = text_fields(whole, source)
        self.sampling_defaults = check_sampling_defaults(
            {name: self._generation.get(key) for key, name in GENERATION_CONFIG.items()},
            source=str(path / "generation_config.json"),
        )
        method = read_method(path, self._config, methods)
        self.quantization = None if method is None else method.name
        self._files: TensorFiles
        self._tensors: TensorFiles | QuantizedTensors
        if make_tensors is not None:
            if method is not None:
                raise ConfigError(
                    f"--load-format dummy makes no weights of {method.name}: remove "
                    f"quantization_config from {source}, or use --quantize-on-load"
                )
            self._files = self._tensors = make_tensors(
                self.name, self.config, _stated_dtype(self._config)
            )
            return
        self._files = files = _open_files(path, whole)
        self._tensors = files if method is None else QuantizedTensors(files, method)

    @property
    def name(self) -> str:
        """The directory's name; in the hub's cache, whose names are hashes, the model's name."""
        path = self.path.resolve()
        if path.parent.name == "snapshots":
            return path.parent.parent.name.rpartition("--")[2]
        return path.name

    @property
    def files(self) -> Mapping[Path, int]:
        return self._files.header_bytes()

    @property
    def dtype(self) -> torch.dtype | WeightFormat:
        """The format of the first packed matrix; without one, the type that config.json states."""
        if isinstance(self._tensors, QuantizedTensors):
            return self._tensors.format
        return _stated_dtype(self._config)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids in generation_config.json, or else in config.json."""
        stated = self._generation.get("eos_token_id")
        stated = self._config.get("eos_token_id") if stated is None else stated
        ids = stated if isinstance(stated, list) else [stated]
        return tuple(i for i in ids if isinstance(i, int))

    def tensor_names(self) -> Sequence[str]:
        return self._tensors.tensor_names()

    def stored(self, name: str) -> StoredTensor:
        return self._tensors.stored(name)

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor in its stored type, in float32 if it is quantized.

        Raises ConfigError if it is missing or damaged.
        """
        return self._tensors.tensor(name)

    def matrix(self, name: str) -> Weights:
        """Read a matrix in its stored form. Raises ConfigError if it is missing or damaged."""
        return self._tensors.matrix(name)

    def release(self) -> None:
        self._files.release()


def read_config(path: Path) -> dict[str, Any]:
    """Read config.json of a directory. Raises ConfigError if it is missing or damaged."""
    return read_json(path / "config.json")


def _stated_dtype(config: Mapping[str, Any]) -> torch.dtype:
    stated = config.get("dtype") or config.get("torch_dtype")
    return _DTYPES.get(str(stated).removeprefix("torch."), torch.float32)


def _open_files(path: Path, config: Mapping[str, Any]) -> SafetensorsFiles:
    if not is_multimodal(config):
        return SafetensorsFiles(path)
    files = SafetensorsFiles(path, text_tensor)
    if not has_known_tower(config):  # otherwise the one who loads it says whether it is used
        log.info("only_text_model_used", path=str(path), ignored_tensors=files.num_hidden)
    return files
