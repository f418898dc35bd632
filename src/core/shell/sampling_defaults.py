"""The sampling parameters of requests that leave them open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import EngineConfig
from ..interfaces import ModelInfo
from ..sampling_params import SamplingParams


def default_sampling_params(
    config: EngineConfig, info: ModelInfo, given: Mapping[str, object]
) -> SamplingParams:
    """The sampling defaults, overridden by the given values. None counts as not given."""
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return SamplingParams(**{**sampling_defaults(config, info), **chosen})


def sampling_defaults(config: EngineConfig, info: ModelInfo) -> dict[str, Any]:
    """The defaults of the model and of --override-generation-config."""
    own = info.sampling_defaults if config.generation_config == "auto" else {}
    overrides = config.override_generation_config or {}
    assert isinstance(overrides, Mapping), "EngineConfig has read it"
    return {**own, **overrides}
