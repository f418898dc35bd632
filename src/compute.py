"""Public interface for plugins that compute: attention, products, models. It imports torch."""

from __future__ import annotations

from .backends.attention.base import (
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    GraphableBackend,
    GraphSupport,
)
from .backends.attention.kv_layout import KVLayout
from .backends.linear.base import ACTIVATIONS, LinearBackend, LinearSpec, Projection
from .backends.machine.compiling import BuildError
from .backends.models.base import Attend, LoadOptions, Model, ModelImpl, ModelSpec
from .backends.models.decoder import Decoder
from .backends.models.native import NativeModels
from .backends.running.runner import StepModel
from .backends.sampling.ops import RowsToDraw, SamplingOps, TorchSampling
from .backends.state.input_batch import InputBatch
from .backends.state.kv_cache import KVCache
from .backends.weights.checkpoint import Checkpoint
from .backends.weights.formats.gguf_blocks import GGUFBlocks
from .backends.weights.model_config import LayerKind, ModelConfig
from .backends.weights.packed import PackedWeights, WeightFormat, Weights

__all__ = [
    "ACTIVATIONS",
    "Attend",
    "AttentionBackend",
    "AttentionBatch",
    "AttentionSpec",
    "BuildError",
    "Checkpoint",
    "Decoder",
    "GGUFBlocks",
    "GraphSupport",
    "GraphableBackend",
    "InputBatch",
    "KVCache",
    "KVLayout",
    "LayerKind",
    "LinearBackend",
    "LinearSpec",
    "LoadOptions",
    "Model",
    "ModelConfig",
    "ModelImpl",
    "ModelSpec",
    "NativeModels",
    "PackedWeights",
    "Projection",
    "RowsToDraw",
    "SamplingOps",
    "StepModel",
    "TorchSampling",
    "WeightFormat",
    "Weights",
]
