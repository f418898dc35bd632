"""Public interface for plugins that compute: attention, products, models, grammars, executors.

It imports torch.
"""

from .backends.attention.base import AttentionBackend as AttentionBackend
from .backends.attention.base import AttentionBatch as AttentionBatch
from .backends.attention.base import AttentionCapabilities as AttentionCapabilities
from .backends.attention.base import AttentionSpec as AttentionSpec
from .backends.attention.base import GraphableBackend as GraphableBackend
from .backends.attention.base import GraphSupport as GraphSupport
from .backends.attention.kv_layout import KVLayout as KVLayout
from .backends.execution.base import ExecutorProvider as ExecutorProvider
from .backends.execution.base import ExecutorSpec as ExecutorSpec
from .backends.execution.workers.answers import Answer as Answer
from .backends.execution.workers.answers import RankAnswers as RankAnswers
from .backends.execution.workers.answers import WorkerStepError as WorkerStepError
from .backends.execution.workers.answers import agree as agree
from .backends.execution.workers.messages import Loaded as Loaded
from .backends.execution.workers.messages import StartRank as StartRank
from .backends.execution.workers.watch import Watch as Watch
from .backends.execution.workers.watch import Watched as Watched
from .backends.execution.workers.worker import LoadRank as LoadRank
from .backends.execution.workers.worker import RankModel as RankModel
from .backends.execution.workers.worker import answer_plan as answer_plan
from .backends.execution.workers.worker import load_or_refuse as load_or_refuse
from .backends.grammar.base import CompiledGrammar as CompiledGrammar
from .backends.grammar.base import GrammarBackend as GrammarBackend
from .backends.grammar.base import GrammarError as GrammarError
from .backends.grammar.base import GrammarSpec as GrammarSpec
from .backends.grammar.base import MaskedRows as MaskedRows
from .backends.grammar.base import Matcher as Matcher
from .backends.linear.base import ACTIVATIONS as ACTIVATIONS
from .backends.linear.base import LinearBackend as LinearBackend
from .backends.linear.base import LinearCapabilities as LinearCapabilities
from .backends.linear.base import LinearSpec as LinearSpec
from .backends.linear.base import Projection as Projection
from .backends.machine.compiling import BuildError as BuildError
from .backends.models.base import Attend as Attend
from .backends.models.base import AttentionRecord as AttentionRecord
from .backends.models.base import LoadOptions as LoadOptions
from .backends.models.base import Model as Model
from .backends.models.base import ModelImpl as ModelImpl
from .backends.models.base import ModelSpec as ModelSpec
from .backends.models.base import ReferenceRun as ReferenceRun
from .backends.models.native.decoder import Decoder as Decoder
from .backends.models.native.implementation import NativeModels as NativeModels
from .backends.sampling.processing.base import LogitsProcessor as LogitsProcessor
from .backends.sampling.processing.base import ProcessedRow as ProcessedRow
from .backends.sampling.processing.base import ProcessorSpec as ProcessorSpec
from .backends.weights.checkpoint import Checkpoint as Checkpoint
from .backends.weights.config.features import Features as Features
from .backends.weights.config.fields import Fields as Fields
from .backends.weights.config.model_config import LayerKind as LayerKind
from .backends.weights.config.model_config import ModelConfig as ModelConfig
from .backends.weights.formats.gguf_blocks import GGUFBlocks as GGUFBlocks
from .backends.weights.formats.grouped_ints import grouped_ints as grouped_ints
from .backends.weights.formats.scaled_fp8 import scaled_fp8 as scaled_fp8
from .backends.weights.gguf.checkpoint import GGUFCheckpoint as GGUFCheckpoint
from .backends.weights.huggingface.checkpoint import SafetensorsCheckpoint as SafetensorsCheckpoint
from .backends.weights.packed import PackedWeights as PackedWeights
from .backends.weights.packed import StoredTensor as StoredTensor
from .backends.weights.packed import WeightFormat as WeightFormat
from .backends.weights.packed import Weights as Weights
from .backends.weights.quantization.method import Method as Method
from .backends.weights.quantization.method import Parts as Parts
from .backends.weights.quantization.methods import ReadMethod as ReadMethod
from .backends.weights.quantization.sample import QuantizedSample as QuantizedSample
from .core.errors import DeviceError as DeviceError
from .core.interfaces import Computation as Computation
from .core.interfaces import Executor as Executor
from .core.interfaces import Pending as Pending

__all__ = sorted(name for name in globals() if name[0].isalpha())
