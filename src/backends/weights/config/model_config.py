"""The configuration of a decoder of the Llama family, independent of the file's format."""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, dataclass, field

from ....core.errors import ConfigError
from .features import Features
from .rope_config import RopeConfig, RopeScaling

DRAFT_HEAD = "draft_head"
"""The `model_type` of a draft head, which is not a model of its own; see models/draft_head.py."""
_MAX_EXPERTS = 4096
"""Experts are listed one by one, so a hostile number would fill the memory."""
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """The attention of a layer, as far as layers of one model differ."""

    sliding_window: int | None = None
    """Number of tokens that a query sees, itself included. None: all earlier."""
    rope: RopeConfig | None = field(default_factory=RopeConfig)
    """None: q and k are not rotated (SmolLM3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Sizes and switches of the experts that a layer has instead of one feed-forward network."""

    num_experts: int
    num_active: int
    """Number of experts that compute a token."""
    intermediate_size: int
    normalizes_shares: bool
    """The probabilities of the active experts are divided by their sum."""
    has_biases: bool = False
    """Router and experts have biases (gpt-oss)."""
    swiglu_limit: float | None = None
    """Experts compute (up + 1) * gate * sigmoid(alpha * gate), where gate is at most this number
    and up is between it and its negative (gpt-oss). None: activation(gate) * up."""
    swiglu_alpha: float = 1.702
    own: tuple[int, int] | None = None
    """First and end index of the experts that this process computes. None: all."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_active <= self.num_experts <= _MAX_EXPERTS:
            raise ConfigError(
                f"{self.num_active} of {self.num_experts} experts per token are not possible: "
                f"there must be at least the experts of a token, and at most {_MAX_EXPERTS}"
            )
        if self.intermediate_size < 1:
            raise ConfigError(f"experts need a size of at least 1, got {self.intermediate_size}")

    @property
    def local(self) -> range:
        """The experts that this process computes."""
        return range(*(self.own or (0, self.num_experts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of a decoder, with transformers' names if they mean the same.

    Raises ConfigError when the sizes do not fit together.
    """

    architecture: str
    """transformers' class name, for example "LlamaForCausalLM"."""
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    features: Features = field(default_factory=Features)
    """The features that follow from the architecture."""
    rope: RopeConfig = field(default_factory=RopeConfig)
    """The rotation of all layers, unless `layers` are given."""
    sliding_window: int | None = None
    """The window of all layers, unless `layers` are given; see LayerKind."""
    layers: tuple[LayerKind, ...] = ()
    """One kind per layer when layers differ. Empty: all have `rope` and `sliding_window`."""
    rotary_size: int | None = None
    """Number of elements at the beginning of each head that are rotated. None: all."""
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    """Biases on q, k and v."""
    attention_output_bias: bool = False
    mlp_bias: bool = False
    query_pre_attn_scalar: float | None = None
    """Scores are divided by the square root of this number. None: of `head_size`."""
    attention_soft_cap: float | None = None
    """Scores are limited to this number by tanh (Gemma 2)."""
    logits_soft_cap: float | None = None
    """Logits are limited to this number by tanh (Gemma 2)."""
    experts: ExpertsConfig | None = None
    """Every layer has experts. None: each has one feed-forward network."""
    earlier_layers: tuple[LayerKind, ...] = ()
    """If this is a stage of a model: the layers of the stages before it."""
    later_layers: tuple[LayerKind, ...] = ()
    """The layers of the stages after it."""
    num_stages: int = 1
    """Number of stages of the model."""
    hidden_act: str = "silu"
    draft_vocab_size: int | None = None
    """Number of logits of a draft model that drafts only the most common tokens. Its tensor `d2t`
    names these tokens; see weights/draft_vocabulary.py."""
    logits_part: tuple[int, int] | None = None
    """The first of the logits that this process computes, and their number: it has only these rows
    of the head. None: all. See ShardedCheckpoint."""

    def __post_init__(self) -> None:
        self._check_sizes()
        if not 1 <= self.num_logits <= self.vocab_size:
            raise self._error(
                f"draft_vocab_size must be between 1 and vocab_size, {self.vocab_size}, "
                f"got {self.draft_vocab_size}"
            )
        self._check_rotation()
        for kind in self.layer_kinds:
            if kind.sliding_window is not None and kind.sliding_window < 1:
                raise self._error(f"sliding_window must be at least 1, got {kind.sliding_window}")
        for name in ("query_pre_attn_scalar", "attention_soft_cap", "logits_soft_cap"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise self._error(f"{name} must be positive, got {value}")
        if self.hidden_act not in ACTIVATIONS:
            raise self._error(
                f"activation {self.hidden_act!r:.80} is not supported; "
                f"supported: {', '.join(ACTIVATIONS)}"
            )

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        kind = LayerKind(sliding_window=self.sliding_window, rope=self.rope)
        return self.layers or (kind,) * self.num_layers

    @property
    def all_layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kind of every layer of the model, even of layers in other stages."""
        return (*self.earlier_layers, *self.layer_kinds, *self.later_layers)

    @property
    def has_embedding(self) -> bool:
        """False: the first stage of the model has the embedding."""
        return not self.earlier_layers

    @property
    def has_head(self) -> bool:
        """False: the last stage of the model has the last norm and the head."""
        return not self.later_layers

    @property
    def kv_window(self) -> int | None:
        """Maximum number of tokens that a query sees in any layer of the model; None if a layer
        sees all."""
        windows = [kind.sliding_window for kind in self.all_layer_kinds]
        return None if None in windows else max(filter(None, windows))

    @property
    def non_defaults(self) -> frozenset[str]:
        """Names of the fields, and of those of `features`, that do not have their default value.

        Code that handles only some configurations compares this with the names that it knows, so
        that it never ignores a field that is added later.
        """
        return frozenset(
            own.name
            for record in (self, self.features)
            for own in dataclasses.fields(record)
            if _default(own) not in (MISSING, getattr(record, own.name))
        ) - {"features"}

    @property
    def num_logits(self) -> int:
        """Number of logits per token."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def attention_scale(self) -> float:
        """Factor of q·k before the softmax."""
        return float((self.query_pre_attn_scalar or self.head_size) ** -0.5)

    def for_context(self, max_model_len: int | None) -> ModelConfig:
        """Return the configuration for sequences of at most this length; None: the default.

        The length matters only to longrope, whose frequencies depend on it. Its default is the
        original context. Longer contexts compute all sequences with the frequencies for long ones.
        """
        original = self.longrope_context
        if original is None:
            return self
        length = min(max_model_len or original, self.max_position_embeddings)
        return dataclasses.replace(self, max_position_embeddings=length)

    @property
    def longrope_context(self) -> int | None:
        """The original context of longrope, in tokens; None: no layer has longrope."""
        originals = (
            kind.rope.original_max_position_embeddings or 0
            for kind in self.all_layer_kinds
            if kind.rope is not None and kind.rope.scaling is RopeScaling.LONGROPE
        )
        return next(originals, None)

    def _check_sizes(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise self._error(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_position_embeddings > _MOST_POSITIONS:
            raise self._error(f"max_position_embeddings must be at most {_MOST_POSITIONS}")
        if self.num_heads % self.num_kv_heads:
            raise self._error(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} KV heads evenly"
            )
        if self.layers and len(self.layers) != self.num_layers:
            raise self._error(
                f"each of the {self.num_layers} layers needs a kind, got {len(self.layers)} kinds"
            )

    def _check_rotation(self) -> None:
        if self.head_size % 2:
            raise self._error(f"rotary embeddings need an even head size, got {self.head_size}")
        size = self.head_size if self.rotary_size is None else self.rotary_size
        if size % 2 or not 2 <= size <= self.head_size:
            raise self._error(
                f"the number of rotated elements of a head must be even and at most "
                f"{self.head_size}, got {size}"
            )
        for kind in self.layer_kinds:
            if kind.rope is not None:
                kind.rope.check_size(size // 2)

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"{self.architecture}: {text}")


def _default(own: dataclasses.Field[object]) -> object:
    return own.default if own.default_factory is MISSING else own.default_factory()


_MOST_POSITIONS = 2**31 - 1
"""Positions are int32 in kernels."""
_POSITIVE = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_size",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
