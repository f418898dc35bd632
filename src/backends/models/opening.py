"""Opens a model: chooses the implementation that runs it, and reads its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigError
from ...core.interfaces import Progress, no_progress
from ...core.log import get_logger
from ..choosing.auto import Plugins, choose
from ..machine.device import choose_device
from ..weights.checkpoint import Checkpoint
from ..weights.checkpoint_decorator import stored_dtype
from ..weights.expected_quantization import check_quantization
from ..weights.files.model_path import find_model
from ..weights.formats.quantizing import QUANTIZE_ON_LOAD, ROUND_TO_FLOAT16
from ..weights.gguf.parts import read_gguf_model
from ..weights.huggingface.checkpoint import read_config
from ..weights.huggingface.overrides import overridden
from ..weights.quantization.methods import METHODS, ReadMethod
from ..weights.quantized_on_load import QuantizedOnLoad
from .base import ModelImpl, ModelSpec

log = get_logger("engine")
NO_OVERRIDES: Mapping[str, Any] = {}


def choose_model_impl(plugins: Plugins, progress: Progress = no_progress) -> Any:
    """Return the class of a model implementation, or an object that is used like one.

    Raises PluginError for an option that no chosen implementation takes.
    """
    return choose(plugins, "model_impl", _reasons_against, progress)


def open_model(
    path: Path,
    model_impl: Any,
    config: EngineConfig,
    methods: Mapping[str, ReadMethod] = METHODS,
) -> tuple[Checkpoint, ModelImpl]:
    """Open a model, and make the implementation that runs it.

    `methods` are the known quantization methods. Raises ConfigError with all reasons if no
    implementation can run the model, and if its files are not quantized as the configuration says.
    """
    is_random = config.load_format == "dummy"
    checkpoint, impl = open_as_stored(
        path, model_impl, methods, _overrides(config), config.seed if is_random else None
    )
    check_quantization(config.quantization, checkpoint, methods)
    if config.quantize_on_load is None:
        return in_float16(checkpoint, impl, config), impl
    if config.quantize_on_load not in QUANTIZE_ON_LOAD:
        raise ConfigError(
            f"--quantize-on-load must be one of {', '.join(QUANTIZE_ON_LOAD)}, "
            f"got {config.quantize_on_load!r}"
        )
    if not impl.keeps_packed:
        raise ConfigError(
            f"--quantize-on-load {config.quantize_on_load} is not possible: the model "
            f"implementation {impl.name!r} computes with floating-point weights; remove the flag"
        )
    quantized = QuantizedOnLoad(
        checkpoint, config.quantize_on_load, cache_limit=config.model_cache_size
    )
    if not quantized.changes_anything:
        log.warning(
            "quantize_on_load_has_no_effect",
            flag=f"--quantize-on-load {config.quantize_on_load}",
            reason=f"no matrix of {checkpoint.path} has floating-point weights of a fitting shape",
        )
    return quantized, impl


def in_float16(checkpoint: Checkpoint, impl: ModelImpl, config: EngineConfig) -> Checkpoint:
    """The checkpoint, with matrices in float16 for products in float32 if the options ask for it.

    GPUs compute in float16. On a CPU, --dtype auto keeps what is stored in float16, and --dtype
    float16 rounds all matrices.
    """
    is_possible = impl.keeps_packed and choose_device(config.device).type == "cpu"
    if is_possible and config.dtype == "float16":
        return QuantizedOnLoad(checkpoint, ROUND_TO_FLOAT16)
    if is_possible and config.dtype == "auto" and stored_dtype(checkpoint) is torch.float16:
        return QuantizedOnLoad(checkpoint, ROUND_TO_FLOAT16, only=torch.float16)
    return checkpoint


def _overrides(config: EngineConfig) -> Mapping[str, Any]:
    overrides = config.hf_overrides or {}
    assert not isinstance(overrides, str)  # EngineConfig has parsed it
    return overrides


def open_as_stored(
    path: Path,
    model_impl: Any,
    methods: Mapping[str, ReadMethod] = METHODS,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    random_seed: int | None = None,
) -> tuple[Checkpoint, ModelImpl]:
    """Open a model, as `open_model` does, but with its weights as they are stored."""
    spec = replace(describe(path, methods, overrides), random_seed=random_seed)
    if random_seed is not None:
        if spec.gguf is not None:
            raise ConfigError(
                f"--load-format dummy reads config.json, which {path.name} does not have: remove it"
            )
        log.warning("weights_are_random", path=str(spec.path), seed=random_seed)
    reasons = model_impl.reasons_against(spec)
    if reasons:
        changed = " (with --hf-overrides)" if overrides else ""
        raise ConfigError("; ".join(reasons) + changed)
    impl: ModelImpl = model_impl(spec)
    return impl.open(), impl


def describe(
    path: Path,
    methods: Mapping[str, ReadMethod] = METHODS,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> ModelSpec:
    """Read config.json of a directory with the overrides, or the header of a GGUF file.

    Raises ConfigError if there is no model of a known format, or an override cannot work.
    """
    path = find_model(path)
    if path.is_dir():
        fields = read_config(path)
        if overrides:
            fields = overridden(fields, overrides, str(path / "config.json"))
            log.info("config_overridden", path=str(path), overrides=dict(overrides))
        return ModelSpec(path=path, fields=fields, methods=methods)
    if overrides:
        raise ConfigError(
            f"--hf-overrides changes config.json, which {path.name} does not have: remove it, or "
            "name the model's Hugging Face directory"
        )
    gguf = read_gguf_model(path)
    return ModelSpec(path=gguf.path, fields={}, gguf=gguf, methods=methods)


def _reasons_against(implementation: Any, spec: Any, progress: Progress) -> list[str]:
    reasons: list[str] = implementation.reasons_against(spec)
    return reasons
