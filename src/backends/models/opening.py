"""Opens a model: chooses the implementation that runs it, and reads its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.config import EngineConfig
from ...core.errors import ConfigError
from ...core.interfaces import Progress, no_progress
from ..choosing.auto import Plugins, choose
from ..weights.checkpoint import Checkpoint, open_checkpoint
from ..weights.expected_quantization import check_quantization
from ..weights.formats.quantizing import QUANTIZE_ON_LOAD
from ..weights.huggingface.checkpoint import SafetensorsCheckpoint
from ..weights.json_file import read_json
from ..weights.model_path import gguf_in
from ..weights.quantized_on_load import QuantizedOnLoad
from .base import ModelImpl, ModelSpec, keeps_packed


def choose_model_impl(plugins: Plugins, progress: Progress = no_progress) -> Any:
    """Return the class of a model implementation, or an object that is used like one.

    Raises PluginError for an option that no chosen implementation takes.
    """
    return choose(plugins, "model_impl", _reasons_against, progress)


def open_model(path: Path, model_impl: Any, config: EngineConfig) -> tuple[Checkpoint, ModelImpl]:
    """Open a model, and make the implementation that runs it.

    Raises ConfigError with all reasons if no implementation can run it, and if its files are not
    quantized as the configuration says.
    """
    checkpoint, impl = _open(path, model_impl)
    check_quantization(config.quantization, checkpoint)
    if config.quantize_on_load is None:
        return checkpoint, impl
    if config.quantize_on_load not in QUANTIZE_ON_LOAD:
        raise ConfigError(
            f"--quantize-on-load must be one of {', '.join(QUANTIZE_ON_LOAD)}, "
            f"got {config.quantize_on_load!r}"
        )
    if not keeps_packed(impl):
        raise ConfigError(
            f"--quantize-on-load {config.quantize_on_load} has no effect: models of the "
            f"implementation {impl.name!r} compute with weights in floating point. Remove it"
        )
    quantized = QuantizedOnLoad(
        checkpoint, config.quantize_on_load, cache_limit=config.model_cache_size
    )
    return quantized, impl


def _open(path: Path, model_impl: Any) -> tuple[Checkpoint, ModelImpl]:
    spec = describe(path)
    reasons = model_impl.reasons_against(spec)
    if reasons:
        raise ConfigError("; ".join(reasons))
    impl: ModelImpl = model_impl(spec)
    if not spec.fields:
        return open_checkpoint(path), impl
    return SafetensorsCheckpoint(spec.path, impl.read_config(), spec.fields), impl


def describe(path: Path) -> ModelSpec:
    """Read config.json, if the model is a directory that has one. Raises ConfigError."""
    path = path.expanduser()
    config = path / "config.json"
    if not path.is_dir() or gguf_in(path) or not config.exists():
        return ModelSpec(path=path, fields={})
    return ModelSpec(path=path, fields=read_json(config))


def _reasons_against(implementation: Any, spec: Any, progress: Progress) -> list[str]:
    reasons: list[str] = implementation.reasons_against(spec)
    return reasons
