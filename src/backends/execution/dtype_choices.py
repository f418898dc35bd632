"""The price of each value of --dtype: memory, and exactness as far as it was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigError
from ...core.interfaces import no_progress
from ..models.base import ModelImpl
from ..models.opening import in_float16
from ..running.parts.model_parts import Backends, choose_spec, keeping_of
from ..running.parts.precision import price_of
from ..weights.checkpoint import Checkpoint
from ..weights.checkpoint_decorator import as_stored, stored_dtype
from .rank_memory import estimate_ranks
from .workers.division import divide_among_ranks

_NAMES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class DtypeChoice:
    """A model with one value of --dtype. Sizes are in bytes, of all ranks of a replica."""

    name: str
    computed_in: str = ""
    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    mean_difference: float | None = None
    """The mean difference of a token's log-probability from float32, measured with the default
    model. None: it was not measured for such a device or file."""
    refusal: str | None = None
    """Why this value is not possible. The other fields are then empty."""


def dtype_choices(
    checkpoint: Checkpoint, config: EngineConfig, backends: Backends, impl: ModelImpl
) -> tuple[DtypeChoice, ...]:
    """Describe the model with each value of --dtype except auto, from headers alone."""
    found = []
    for name in _NAMES:
        try:
            found.append(_describe(name, as_stored(checkpoint), config, backends, impl))
        except ConfigError as error:
            found.append(DtypeChoice(name=name, refusal=str(error)))
    return tuple(found)


def _describe(
    name: str, stored: Checkpoint, config: EngineConfig, backends: Backends, impl: ModelImpl
) -> DtypeChoice:
    config = replace(config, dtype=name, quantize_on_load=None)
    checkpoint = in_float16(stored, impl, config)
    spec = choose_spec(checkpoint, config, backends, no_progress)
    keeping = keeping_of(config, backends, spec, impl, checkpoint)
    ranks = estimate_ranks(divide_among_ranks(checkpoint, impl, config), config, spec, keeping)
    own, is_cpu = stored_dtype(stored), spec.device.type == "cpu"
    return DtypeChoice(
        name=name,
        computed_in=str(spec.dtype).removeprefix("torch."),
        weight_bytes=sum(one.weights for one in ranks),
        kv_bytes_per_token=sum(one.kv_per_token for one in ranks),
        mean_difference=price_of(name, own) if is_cpu and isinstance(own, torch.dtype) else None,
    )
