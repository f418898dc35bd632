"""Public interface for plugins that compute: attention, products, models, grammars, executors.

It imports torch.
"""

from __future__ import annotations

from .backends.attention.base import (
    AttentionBackend,
    AttentionBatch,
    AttentionCapabilities,
    AttentionSpec,
    GraphableBackend,
    GraphSupport,
)
from .backends.attention.kv_layout import KVLayout
from .backends.execution.base import ExecutorProvider, ExecutorSpec
from .backends.execution.workers.answers import Answer, RankAnswers, WorkerStepError, agree
from .backends.execution.workers.messages import Loaded, StartRank
from .backends.execution.workers.watch import Watch, Watched
from .backends.execution.workers.worker import LoadRank, RankModel, answer_plan, load_or_refuse
from .backends.grammar.base import (
    CompiledGrammar,
    GrammarBackend,
    GrammarError,
    GrammarSpec,
    MaskedRows,
    Matcher,
)
from .backends.linear.base import (
    ACTIVATIONS,
    LinearBackend,
    LinearCapabilities,
    LinearSpec,
    Projection,
)
from .backends.machine.compiling import BuildError
from .backends.models.base import (
    Attend,
    AttentionRecord,
    LoadOptions,
    Model,
    ModelImpl,
    ModelSpec,
    ReferenceRun,
)
from .backends.models.native.decoder import Decoder
from .backends.models.native.implementation import NativeModels
from .backends.sampling.processing.base import LogitsProcessor, ProcessedRow, ProcessorSpec
from .backends.weights.checkpoint import Checkpoint
from .backends.weights.config.features import Features
from .backends.weights.config.fields import Fields
from .backends.weights.config.model_config import LayerKind, ModelConfig
from .backends.weights.formats.gguf_blocks import GGUFBlocks
from .backends.weights.formats.grouped_ints import grouped_ints
from .backends.weights.formats.scaled_fp8 import scaled_fp8
from .backends.weights.gguf.checkpoint import GGUFCheckpoint
from .backends.weights.huggingface.checkpoint import SafetensorsCheckpoint
from .backends.weights.packed import PackedWeights, StoredTensor, WeightFormat, Weights
from .backends.weights.quantization.method import Method, Parts
from .backends.weights.quantization.methods import ReadMethod
from .backends.weights.quantization.sample import QuantizedSample
from .core.errors import DeviceError
from .core.interfaces import Computation, Executor, Pending

__all__ = [
    "ACTIVATIONS",
    "Answer",
    "Attend",
    "AttentionBackend",
    "AttentionBatch",
    "AttentionCapabilities",
    "AttentionRecord",
    "AttentionSpec",
    "BuildError",
    "Checkpoint",
    "CompiledGrammar",
    "Computation",
    "Decoder",
    "DeviceError",
    "Executor",
    "ExecutorProvider",
    "ExecutorSpec",
    "Features",
    "Fields",
    "GGUFBlocks",
    "GGUFCheckpoint",
    "GrammarBackend",
    "GrammarError",
    "GrammarSpec",
    "GraphSupport",
    "GraphableBackend",
    "KVLayout",
    "LayerKind",
    "LinearBackend",
    "LinearCapabilities",
    "LinearSpec",
    "LoadOptions",
    "LoadRank",
    "Loaded",
    "LogitsProcessor",
    "MaskedRows",
    "Matcher",
    "Method",
    "Model",
    "ModelConfig",
    "ModelImpl",
    "ModelSpec",
    "NativeModels",
    "PackedWeights",
    "Parts",
    "Pending",
    "ProcessedRow",
    "ProcessorSpec",
    "Projection",
    "QuantizedSample",
    "RankAnswers",
    "RankModel",
    "ReadMethod",
    "ReferenceRun",
    "SafetensorsCheckpoint",
    "StartRank",
    "StoredTensor",
    "Watch",
    "Watched",
    "WeightFormat",
    "Weights",
    "WorkerStepError",
    "agree",
    "answer_plan",
    "grouped_ints",
    "load_or_refuse",
    "scaled_fp8",
]
