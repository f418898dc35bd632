"""Public interface for plugins that compute: attention backends. It imports torch."""

from __future__ import annotations

from .backends.attention.base import (
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    GraphableBackend,
    GraphSupport,
)
from .backends.attention.kv_layout import KVLayout
from .backends.machine.compiling import BuildError
from .backends.models.decoder import Decoder
from .backends.running.runner import StepModel
from .backends.sampling.ops import RowsToDraw, SamplingOps, TorchSampling
from .backends.state.input_batch import InputBatch
from .backends.state.kv_cache import KVCache

__all__ = [
    "AttentionBackend",
    "AttentionBatch",
    "AttentionSpec",
    "BuildError",
    "Decoder",
    "GraphSupport",
    "GraphableBackend",
    "InputBatch",
    "KVCache",
    "KVLayout",
    "RowsToDraw",
    "SamplingOps",
    "StepModel",
    "TorchSampling",
]
