"""The implementation of models by transformers' own modules."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from ....core.errors import ConfigError
from ...weights.checkpoint import Checkpoint
from ...weights.config.fields import Fields, one_line
from ...weights.config.model_config import ModelConfig
from ...weights.huggingface.checkpoint import SafetensorsCheckpoint
from ...weights.huggingface.multimodal import text_fields
from ...weights.quantization.methods import read_method
from ...weights.sharding import Shard
from ..base import LoadOptions, ModelSpec
from ..native.dequantized import Dequantized
from ..native.loader import STAGE
from . import attention
from .divided import DividedCheckpoint, DividedModels, DivisionPlan, SumOverRanks
from .model import BridgedModel
from .probe import check_sizes, probe, text_config_of

_AutoModel: Any = AutoModelForCausalLM
_CONFIGS: Any = CONFIG_MAPPING
"""Any, because transformers' own types are wrong about the methods that are used here."""
_VARYING_ROPES = ("dynamic", "longrope")
"""Rotations whose frequencies depend on the longest sequence of a batch."""
_MAX_MODULES = 4096
_COUNTS = re.compile(r".*(layers?|experts?|n_layer|num_blocks)")
"""Fields that count modules. transformers builds any number that a hostile file states."""


class TransformersModels:
    """Decoders that transformers knows and whose layers use its attention interface.

    See ModelImpl.
    """

    name = "transformers"
    keeps_packed = False
    is_divisible = divides_itself = True

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    @classmethod
    def reasons_against(cls, spec: ModelSpec) -> list[str]:
        if spec.gguf is not None:
            return ["it reads directories with config.json and safetensors, not GGUF files"]
        if spec.random_seed is not None:
            return ["it makes no random weights (--load-format dummy)"]
        if spec.fields.get("auto_map"):
            return [f"{spec.path / 'config.json'} has auto_map, which is not supported"]
        absurd = _absurd_number(spec.fields)
        if absurd is not None:
            return [f"{spec.path / 'config.json'} has {absurd}"]
        try:
            cls(spec).read_config()
        except ConfigError as error:
            return [str(error)]
        return []

    def read_config(self) -> ModelConfig:
        """Return the model's sizes. It runs once without weights, to see how its layers attend.

        Raises ConfigError.
        """
        return self._config

    def open(self) -> Checkpoint:
        spec = self._spec
        return SafetensorsCheckpoint(spec.path, self._config, spec.fields, spec.methods)

    def part(self, checkpoint: Checkpoint, shard: Shard) -> Checkpoint:
        """One rank's part of a model. Raises ConfigError if transformers' plan for the model cannot
        be followed."""
        return DividedCheckpoint(checkpoint, self._plan(shard))

    def divided(self, shard: Shard, sum_over_ranks: SumOverRanks) -> DividedModels:
        """The implementation that loads a rank's part."""
        return DividedModels(self.load, self._plan(shard), sum_over_ranks)

    def _plan(self, shard: Shard) -> DivisionPlan:
        return DivisionPlan(self._empty, self._config, shard, self._source)

    @cached_property
    def _config(self) -> ModelConfig:
        return probe(self._empty, self._source)

    @cached_property
    def _empty(self) -> Any:
        """The model without weights, of transformers' class for it."""
        attention.register()
        config = _read(self._spec, self._source)
        check_sizes(config, self._source)
        _refuse_varying_ropes(config, self._source)
        try:
            with torch.device("meta"):
                return _AutoModel.from_config(
                    config,
                    attn_implementation=attention.IMPLEMENTATION,
                    dtype=torch.bfloat16,  # without weights, grouped products know no other
                ).eval()
        except Exception as error:  # any class of transformers
            if error.args == (attention.IMPLEMENTATION,):  # it looks up its own implementations
                raise ConfigError(
                    f"{self._source}: {config.model_type} {attention.NO_INTERFACE}"
                ) from error
            raise ConfigError(
                f"{self._source}: transformers cannot build {config.model_type}: {one_line(error)}"
            ) from error

    @property
    def _source(self) -> str:
        return str(self._spec.path / "config.json")

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> BridgedModel:
        """See ModelImpl. Packed weights are dequantized, and the log says what that costs."""
        options.progress(STAGE, 0.0)
        dtype = options.products.dtype
        try:
            with _quiet():
                model, found = type(self._empty).from_pretrained(
                    None,
                    config=self._empty.config,
                    state_dict=weights_of(checkpoint, dtype),
                    dtype=dtype,
                    attn_implementation=attention.IMPLEMENTATION,
                    output_loading_info=True,
                )
        except ConfigError:
            raise
        except Exception as error:  # any class of transformers
            raise ConfigError(f"{checkpoint.path} cannot be loaded: {one_line(error)}") from error
        _refuse_missing(found["missing_keys"], checkpoint)
        bridged = BridgedModel(model.to(options.products.device).eval(), checkpoint.config)
        check_independence(bridged, self._source)
        options.progress(STAGE, 1.0)
        return bridged


def _read(spec: ModelSpec, source: str) -> Any:
    """Read transformers' configuration; of a multimodal model, that of its text model.

    Raises ConfigError. The quantization is left out: the checkpoint dequantizes.
    """
    fields, source = text_fields(spec.fields, source)
    read_method(spec.path, fields, spec.methods)  # raises ConfigError if it is not supported
    model_type = Fields(fields, source).text("model_type", "")
    if model_type not in _CONFIGS:
        raise ConfigError(
            f"{source} has model_type {model_type!r:.80}, which transformers "
            f"{transformers.__version__} does not know"
        )
    kept = {name: value for name, value in fields.items() if name != "quantization_config"}
    try:
        return _CONFIGS[model_type].from_dict(kept)
    except Exception as error:  # transformers raises many kinds
        raise ConfigError(f"{source}: {one_line(error)}") from error


def _absurd_number(fields: Mapping[str, Any]) -> str | None:
    """Describe the first number, here or in a part such as `text_config`, with which no model can
    be built or computed."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found = _absurd_number(value)
            if found is not None:
                return found
        elif isinstance(value, float) and math.isnan(value):
            return f"{name} NaN, which is not a number"
        elif isinstance(value, int) and value > _MAX_MODULES and _COUNTS.fullmatch(name):
            return f"{name} {value!r:.80}; at most {_MAX_MODULES} can be built"
    return None


def _refuse_missing(names: Collection[str], checkpoint: Checkpoint) -> None:
    """Raise ConfigError for weights that the files lack: transformers makes them up at random."""
    if names:
        raise ConfigError(
            f"{checkpoint.path} lacks {len(names)} tensors: {', '.join(sorted(names)[:5])}"
        )


def _refuse_varying_ropes(config: Any, source: str) -> None:
    parameters = getattr(text_config_of(config, source), "rope_parameters", None) or {}
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


_LENGTH = 4


def check_independence(model: BridgedModel, source: str) -> None:
    """Raise ConfigError if hidden states change with tokens that attention cannot see.

    Convolutions and recurrent states mix the sequences of a flat batch, without any error. Here
    attention is switched off, so a token must give the same result with any other tokens.
    """
    device = model.embedding.device
    tokens_t = torch.arange(1, 1 + _LENGTH, device=device) % model.config.vocab_size
    others_t = tokens_t.clone()
    others_t[:-1] = 0
    positions_t = torch.arange(_LENGTH, device=device)
    with torch.inference_mode():
        before, after = (
            model.forward(one, positions_t, _see_nothing)[-1] for one in (tokens_t, others_t)
        )
    if not torch.allclose(before, after, rtol=1e-3, atol=1e-3):
        raise ConfigError(
            f"{source}: {model.config.architecture} of transformers mixes tokens outside of "
            "attention (by convolutions or states), so it cannot compute several requests at once"
        )


def _see_nothing(layer: int, q_thd: torch.Tensor, k_tkd: Any, v_tkd: Any) -> torch.Tensor:
    return torch.zeros_like(q_thd)


class StoredWeight:
    """A tensor that is read when transformers asks for all of it, like a slice of safetensors."""

    def __init__(self, checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> None:
        """`dtype`: of the result, if the tensor is packed. Other tensors keep their own."""
        self._checkpoint = checkpoint
        self._name = name
        self._dtype = dtype
        self._is_packed = not isinstance(checkpoint.stored(name).format, torch.dtype)

    def __getitem__(self, index: object) -> torch.Tensor:
        """Return the tensor; transformers asks for `[...]`. Raises ConfigError."""
        assert index is Ellipsis
        tensor = self._checkpoint.tensor(self._name)
        return tensor.to(self._dtype) if self._is_packed else tensor


def weights_of(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, StoredWeight]:
    """Return all tensors by name; log the memory that packed ones cost as `dtype`.

    Raises ConfigError for a damaged tensor.
    """
    dequantized = Dequantized()
    for stored in map(checkpoint.stored, checkpoint.tensor_names()):
        if not isinstance(stored.format, torch.dtype):
            dequantized.add(stored, dtype)
    dequantized.log()
    return {name: StoredWeight(checkpoint, name, dtype) for name in checkpoint.tensor_names()}
