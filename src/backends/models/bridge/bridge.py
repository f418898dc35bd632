"""The implementation of models by transformers' own modules."""

from __future__ import annotations

from collections.abc import Iterator
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
        attention.register()
        options.progress(STAGE, 0.0)
        try:
            with _quiet():
                model = _AutoModel.from_pretrained(
                    checkpoint.path,
                    dtype=options.products.dtype,
                    attn_implementation=attention.IMPLEMENTATION,
                    local_files_only=True,
                    trust_remote_code=False,
                    use_safetensors=True,
                )
        except Exception as error:  # any class of transformers
            raise ConfigError(f"{checkpoint.path} cannot be loaded: {one_line(error)}") from error
        bridged = BridgedModel(model.to(options.products.device).eval(), checkpoint.config)
        check_independence(bridged, self._source)
        options.progress(STAGE, 1.0)
        return bridged


def _read(spec: ModelSpec) -> Any:
    try:
        return AutoConfig.from_pretrained(spec.path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds
        raise ConfigError(f"{spec.path / 'config.json'}: {one_line(error)}") from error


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
