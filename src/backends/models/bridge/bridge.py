"""The implementation of models by transformers' own modules."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from ....core.errors import ConfigError
from ...weights.checkpoint import Checkpoint
from ...weights.fields import one_line
from ...weights.model_config import ModelConfig
from ..base import LoadOptions, ModelSpec
from ..loader import STAGE
from . import attention
from .independence import check_independence
from .model import BridgedModel
from .probe import probe

_AutoModel: Any = AutoModelForCausalLM
"""Any, because transformers' own types are wrong about the methods that are used here."""
_VARYING_ROPES = ("dynamic", "longrope")
"""Rotations whose frequencies depend on the longest sequence of a batch."""
_MAX_MODULES = 4096
_COUNTS = re.compile(r".*(layers?|experts?|n_layer|num_blocks)")
"""Fields that count modules. transformers builds as many, however many a hostile file states."""


class TransformersModels:
    """Decoders that transformers knows and whose layers use its attention interface.

    See ModelImpl.
    """

    name = "transformers"

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    @classmethod
    def reasons_against(cls, spec: ModelSpec) -> list[str]:
        """See ModelImpl."""
        if not spec.fields:
            return ["it reads directories with config.json and safetensors, not GGUF files"]
        for name in ("auto_map", "quantization_config"):
            if spec.fields.get(name):
                return [f"{spec.path / 'config.json'} has {name}, which is not supported"]
        absurd = _absurd_count(spec.fields)
        if absurd is not None:
            return [
                f"{spec.path / 'config.json'} has {absurd}; at most {_MAX_MODULES} can be built"
            ]
        try:
            cls(spec).read_config()
        except ConfigError as error:
            return [str(error)]
        return []

    def read_config(self) -> ModelConfig:
        """See ModelImpl. The model runs once without weights, to see how its layers attend."""
        return self._config

    @cached_property
    def _config(self) -> ModelConfig:
        attention.register()
        config = _read(self._spec)
        _refuse_varying_ropes(config, self._source)
        try:
            with torch.device("meta"):
                model = _AutoModel.from_config(
                    config, attn_implementation=attention.IMPLEMENTATION
                ).eval()
        except Exception as error:  # any class of transformers
            raise ConfigError(f"{self._source}: {one_line(error)}") from error
        return probe(model, self._source)

    @property
    def _source(self) -> str:
        return str(self._spec.path / "config.json")

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> BridgedModel:
        """See ModelImpl."""
        if not isinstance(checkpoint.dtype, torch.dtype):
            raise ConfigError(
                "transformers' modules compute with weights in floating point: remove "
                "--quantize-on-load, or use --model-impl native"
            )
        attention.register()
        options.progress(STAGE, 0.0)
        try:
            with _quiet():
                model, found = _AutoModel.from_pretrained(
                    checkpoint.path,
                    dtype=options.products.dtype,
                    attn_implementation=attention.IMPLEMENTATION,
                    local_files_only=True,
                    trust_remote_code=False,
                    use_safetensors=True,
                    output_loading_info=True,
                )
        except Exception as error:  # any class of transformers
            raise ConfigError(f"{checkpoint.path} cannot be loaded: {one_line(error)}") from error
        _refuse_missing(found["missing_keys"], checkpoint)
        bridged = BridgedModel(model.to(options.products.device).eval(), checkpoint.config)
        check_independence(bridged, self._source)
        options.progress(STAGE, 1.0)
        return bridged


def _read(spec: ModelSpec) -> Any:
    try:
        return AutoConfig.from_pretrained(spec.path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds
        raise ConfigError(f"{spec.path / 'config.json'}: {one_line(error)}") from error


def _absurd_count(fields: Mapping[str, Any]) -> str | None:
    """Return the first field, here or in a part such as `text_config`, that counts too many."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found = _absurd_count(value)
            if found is not None:
                return found
        elif isinstance(value, int) and value > _MAX_MODULES and _COUNTS.fullmatch(name):
            return f"{name} {value!r:.80}"
    return None


def _refuse_missing(names: Collection[str], checkpoint: Checkpoint) -> None:
    """Raise ConfigError for weights that the files lack: transformers makes them up at random."""
    if names:
        raise ConfigError(
            f"{checkpoint.path} lacks {len(names)} tensors: {', '.join(sorted(names)[:5])}"
        )


def _refuse_varying_ropes(config: Any, source: str) -> None:
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [parameters, *(one for one in parameters.values() if isinstance(one, dict))]
    for kind in kinds:
        if kind.get("rope_type") in _VARYING_ROPES:
            raise ConfigError(
                f"{source} has rope_type {kind['rope_type']!r}, which depends on the longest "
                "sequence of a batch, so it is not supported"
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide transformers' progress bars while it loads: the engine shows its own."""
    bars: Any = transformers.utils.logging
    was_enabled = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            bars.enable_progress_bar()
