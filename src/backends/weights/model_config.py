"""The configuration of a decoder of the Llama family, independent of the file's format."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ...core.errors import ConfigError

DRAFT_HEAD = "draft_head"
"""The `model_type` of a draft head, which is not a model of its own; see models/draft_head.py."""
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")


class RopeScaling(StrEnum):
    """Methods to stretch rotary frequencies for a longer context; transformers' `rope_type`."""

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embeddings; each kind of scaling uses some of the fields."""

    theta: float = 10000.0
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    """Context length before scaling (llama3, yarn)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    """yarn: factor of cos and sin. None: the paper's value."""
    mscale: float | None = None
    mscale_all_dim: float | None = None
    frequency_divisors: tuple[float, ...] | None = None
    """Divisor of each frequency: GGUF files contain llama3's scaling in this form."""

    def __post_init__(self) -> None:
        if self.theta <= 0 or self.factor <= 0:
            raise ConfigError(
                f"rotary theta and factor must be positive, got {self.theta} and {self.factor}"
            )
        if self.scaling in (RopeScaling.LLAMA3, RopeScaling.YARN):
            if not self.original_max_position_embeddings:
                raise ConfigError(f"{self.scaling} needs original_max_position_embeddings")
            if self.high_freq_factor <= self.low_freq_factor:
                raise ConfigError("llama3 needs high_freq_factor above low_freq_factor")


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
    rope: RopeConfig = field(default_factory=RopeConfig)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    """Biases on q, k and v."""
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each head of q and k, before the rotation (Qwen3)."""
    sliding_window: int | None = None
    """Number of tokens that a query sees, itself included, in every layer. None: all earlier."""
    hidden_act: str = "silu"
    draft_vocab_size: int | None = None
    """Number of logits of a draft model that drafts only the most common tokens. Its tensor `d2t`
    names these tokens; see weights/draft_vocabulary.py."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{self.architecture}: {name} must be at least 1, got {getattr(self, name)}"
                )
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.architecture}: {self.num_heads} query heads cannot share "
                f"{self.num_kv_heads} KV heads evenly"
            )
        if not 1 <= self.num_logits <= self.vocab_size:
            raise ConfigError(
                f"{self.architecture}: draft_vocab_size must be between 1 and vocab_size, "
                f"{self.vocab_size}, got {self.draft_vocab_size}"
            )
        if self.head_size % 2:
            raise ConfigError(
                f"{self.architecture}: rotary embeddings need an even head size, "
                f"got {self.head_size}"
            )
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ConfigError(
                f"{self.architecture}: sliding_window must be at least 1, got {self.sliding_window}"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(
                f"{self.architecture}: activation {self.hidden_act!r:.80} is not supported; "
                f"supported are {', '.join(ACTIVATIONS)}"
            )

    @property
    def num_logits(self) -> int:
        """Number of logits per token."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def attention_scale(self) -> float:
        """Factor of q·k before the softmax."""
        return float(self.head_size**-0.5)


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
