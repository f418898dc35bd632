"""The contract of models, and of the implementations that run them.

Shape suffixes: b sequences, n tokens of a sequence, t tokens of all sequences, r rows that get
logits, e hidden size, h query heads, k KV heads, d head size, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import torch

from ...core.interfaces import Progress
from ...core.members import Member
from ..linear.base import Embedding, LinearBackend, LinearSpec
from ..weights.checkpoint import Checkpoint
from ..weights.config.model_config import ModelConfig
from ..weights.gguf.file import GGUFFile
from ..weights.quantization.methods import METHODS, ReadMethod
from ..weights.sharding import Shard

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""attend(layer, q_thd, k_tkd, v_tkd) -> out_thd. It writes K and V to the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRecord:
    """The arguments and the result of one layer's attention."""

    layer: int
    q_thd: torch.Tensor
    k_tkd: torch.Tensor
    v_tkd: torch.Tensor
    out_thd: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRun:
    """A forward pass that uses nothing of the engine."""

    logits_tv: torch.Tensor
    """float32, of all tokens."""
    attention: Sequence[AttentionRecord] = ()
    """Every call of attention, in order; empty: not known."""


Reference = Callable[[torch.Tensor], ReferenceRun]
"""reference(token_ids_bn) -> the run of b sequences of n tokens; t counts one sequence after the
other. The engine compares its own first steps with it before it is ready."""


class Model(Protocol):
    """Computes hidden states from token ids, and logits from hidden states.

    It is for inference only, over a flat batch of tokens from any number of sequences. Only
    `attend` may let tokens see each other. It may also have SINKS and REFERENCE.
    """

    @property
    def config(self) -> ModelConfig: ...
    @property
    def embedding(self) -> Embedding:
        """The embeddings of all tokens, before a scale. Draft heads look up tokens in it."""
        ...

    @property
    def num_parameters(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """Memory of all weights, in bytes."""
        ...

    def forward(
        self, token_ids_t: torch.Tensor, positions_t: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Return the hidden states [t, e] after the last norm; calls `attend` once per layer."""
        ...

    def compute_logits(self, hidden_re: torch.Tensor) -> torch.Tensor:
        """Return the logits [r, v], in float32, of some rows of `forward`'s result."""
        ...


class TakesRows(Protocol):
    """A model that can begin with given hidden states. It reads images."""

    @property
    def config(self) -> ModelConfig: ...

    def embed(self, token_ids_t: torch.Tensor) -> torch.Tensor:
        """Return the hidden states [t, e] before the first layer, which the caller may change."""
        ...

    def forward_from(
        self, hidden_te: torch.Tensor, positions_t: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """As Model.forward, from the hidden states before the first layer. If the rotation has
        sections, positions may be [3, t]; see RopeConfig.sections."""
        ...


SINKS: Member[Sequence[torch.Tensor]] = Member("sinks", ())
"""The sinks of each layer's attention, float32 [h]: a model has them if
`config.features.attention_sinks` is set."""
REFERENCE: Member[Reference | None] = Member("reference", None)
"""The model's own forward pass."""
DIVIDES_ITSELF = Member("divides_itself", False)
"""True: a model implementation is a DividesItself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The facts about a model that are known before its weights are read."""

    path: Path
    """A directory with config.json, or a GGUF file."""
    fields: Mapping[str, Any]
    """The fields of config.json with --hf-overrides; empty for a GGUF file."""
    gguf: GGUFFile | None = None
    """The header of a GGUF file: metadata, and the table of tensors."""
    methods: Mapping[str, ReadMethod] = field(default_factory=lambda: METHODS)
    """The quantization methods of directories; see read_method."""
    random_seed: int | None = None
    """The weights are random numbers of this seed, and have no files. None: they are read."""

    @property
    def architecture(self) -> str:
        """The model's class, such as "LlamaForCausalLM", or a GGUF file's name such as "llama".

        It is the first of `architectures` in config.json, or `general.architecture` of a GGUF file.
        Files may lack it: "".
        """
        if self.gguf is not None:
            return str(self.gguf.metadata.get("general.architecture", ""))
        named = self.fields.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options with which a model is loaded."""

    products: LinearSpec
    """Type and device of the model."""
    linear: LinearBackend
    keeps_packed: bool
    """Whether packed weights may stay packed."""
    max_model_len: int | None
    progress: Progress


class ModelImpl(Protocol):
    """Runs models of some architectures.

    `tokenmill` makes one with a ModelSpec, opens the checkpoint, and loads the weights.
    """

    name: str
    keeps_packed: bool
    """Whether its models compute with packed weights. Others get dequantized weights."""
    is_divisible: bool
    """Whether it loads one rank's part of a model; see ShardedCheckpoint. It may also be a
    DividesItself."""

    @classmethod
    def reasons_against(cls, spec: ModelSpec) -> list[str]:
        """Return every reason why this implementation cannot run the model; empty if it can."""
        ...

    def __init__(self, spec: ModelSpec) -> None: ...

    def open(self) -> Checkpoint:
        """Open the model: its sizes, and tensors that are read on demand. Raises ConfigError."""
        ...

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Model:
        """Load the weights. `checkpoint` is what `open` returned, or a decorator of it.

        Raises ConfigError if they do not fit the configuration.
        """
        ...


class DividesItself(Protocol):
    """A model implementation that divides its models in a way of its own, but not into stages."""

    name: str

    def part(self, checkpoint: Checkpoint, shard: Shard) -> Checkpoint:
        """Describe one rank's part of a model. Raises ConfigError if it cannot be divided."""
        ...

    def divided(self, shard: Shard, sum_over_ranks: Callable[[torch.Tensor], None]) -> Any:
        """Return the ModelImpl that loads a rank's part. `sum_over_ranks` adds up float32 numbers
        of all ranks, in place."""
        ...


def divides_itself(impl: ModelImpl) -> TypeGuard[DividesItself]:
    """Whether the implementation says so."""
    return DIVIDES_ITSELF.of(impl)
