"""The architectures that the native decoder computes: a table of how to read their files.

huggingface/config.py reads fields of config.json that state a size or a switch directly, and
gguf/config.py reads the metadata of GGUF files. A row has the facts that these files do not state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from .features import Features, Norms


class Biases(StrEnum):
    """The products of attention that have biases."""

    NONE = "none"
    STATED = "stated"
    """The field `attention_bias` is about q, k, v and the output."""
    QKV = "qkv"


class Window(StrEnum):
    """The layers that have the sliding window of the field `sliding_window`."""

    NONE = "none"
    ALL = "all"
    SWITCHED = "switched"
    """Layers from `max_window_layers` on, if `use_sliding_window` is set (Qwen)."""
    WITHOUT_ROPE = "without rope"
    """Layers without rotation, if `use_sliding_window` is set (SmolLM3)."""
    PATTERN = "pattern"
    """All but every n-th layer; see `window_pattern`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsRow:
    """The fields in which the files of one architecture state the sizes of experts."""

    counts: tuple[str, ...]
    """Fields of config.json with the number of experts; the first that is present counts."""
    intermediate_size: str = "intermediate_size"
    normalizes: bool | None = None
    """Whether the shares of active experts are normalized. None: see `norm_topk_prob`."""
    gguf_normalizes: bool = True
    """The same for GGUF files, which do not state it."""
    is_clamped: bool = False
    """Experts have biases and a gate of their own: see ExpertsConfig.swiglu_limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The rules for reading the files of one architecture."""

    name: str
    """transformers' class name."""
    model_type: str
    """`model_type` of config.json."""
    gguf: str | None = None
    """`general.architecture` of GGUF files. None: they state that of another row."""
    features: Features = field(default_factory=Features)
    multimodal: tuple[str, ...] = ()
    """transformers' class names of models that have this one as `text_config`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields that config.json may lack, as in transformers' class."""
    neutral: Mapping[str, Any] = field(default_factory=dict)
    """Fields of config.json that must be absent or have this value, because another one would
    change what is computed."""
    may_lack_kv_heads: bool = False
    """config.json may lack `num_key_value_heads`: there is one per query head. For the others,
    transformers' default fits only one size of the model, so the field is required."""
    numbers: tuple[str, ...] = ()
    """Further fields of config.json that count; keys of NUMBERS."""
    biases: Biases = Biases.NONE
    mlp_bias: bool = False
    """The field `mlp_bias` counts."""
    window: Window = Window.NONE
    window_pattern: int = 1
    """Every n-th layer has no window, unless the file states another number."""
    local_theta: float | None = None
    """Rotary theta of layers with a window, unless the file states one, without scaling. None: all
    layers have the same rotation."""
    rope_interval: int | None = None
    """Every n-th layer has no rotation, unless config.json lists others."""
    partial_rotary: bool = False
    """The field `partial_rotary_factor` counts."""
    rope_sections: Sequence[int] | None = None
    """The default of RopeConfig.sections, if config.json has none. None: no sections."""
    may_lack_text_config: bool = False
    """config.json of a multimodal model may have the text model's fields at the top level."""
    activation_field: str = "hidden_act"
    experts: ExpertsRow | None = None
    yarn_truncates: bool = True
    """For GGUF files, which do not state RopeConfig.truncate."""
    gguf_permutes: bool = False
    """GGUF files have the rows of q and k in another order: see gguf/names.py."""


NUMBERS = {
    "query_pre_attn_scalar": "query_pre_attn_scalar",
    "attn_logit_softcapping": "attention_soft_cap",
    "final_logit_softcapping": "logits_soft_cap",
}
"""Optional numbers: fields of ModelConfig by names of config.json."""

_GEMMA_FEATURES = Features(
    norms=Norms.AROUND, norm_offset=1.0, float32_norms=True, scales_embedding=True
)
_GEMMA = {
    "rms_norm_eps": 1e-6,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}

TABLE = (
    Architecture(
        name="LlamaForCausalLM",
        model_type="llama",
        gguf="llama",
        multimodal=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
        may_lack_kv_heads=True,
        biases=Biases.STATED,
        mlp_bias=True,
        gguf_permutes=True,
    ),
    Architecture(
        name="MistralForCausalLM",
        model_type="mistral",
        multimodal=("Mistral3ForConditionalGeneration",),
        defaults={"sliding_window": 4096},
        window=Window.ALL,
    ),
    Architecture(
        name="Qwen2ForCausalLM",
        model_type="qwen2",
        gguf="qwen2",
        defaults={"sliding_window": 4096},
        biases=Biases.QKV,
        window=Window.SWITCHED,
    ),
    Architecture(
        name="Qwen2_5_VLTextModel",
        model_type="qwen2_5_vl_text",
        multimodal=("Qwen2_5_VLForConditionalGeneration",),
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "max_window_layers": 80,
            "vocab_size": 152064,
        },
        biases=Biases.QKV,
        window=Window.SWITCHED,
        rope_sections=(16, 24, 24),
        may_lack_text_config=True,
    ),
    Architecture(
        name="Qwen3ForCausalLM",
        model_type="qwen3",
        gguf="qwen3",
        features=Features(qk_norm=True),
        defaults={"head_dim": 128, "sliding_window": 4096},
        biases=Biases.STATED,
        window=Window.SWITCHED,
    ),
    Architecture(
        name="Gemma2ForCausalLM",
        model_type="gemma2",
        gguf="gemma2",
        features=_GEMMA_FEATURES,
        defaults=_GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        neutral={"use_bidirectional_attention": False},
        numbers=tuple(NUMBERS),
        biases=Biases.STATED,
        window=Window.PATTERN,
        window_pattern=2,
        activation_field="hidden_activation",
    ),
    Architecture(
        name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        gguf="gemma3",
        features=replace(_GEMMA_FEATURES, qk_norm=True),
        multimodal=("Gemma3ForConditionalGeneration",),
        defaults=_GEMMA
        | {
            "rope_theta": 1e6,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
        },
        neutral={"use_bidirectional_attention": False, "attn_logit_softcapping": None},
        numbers=("query_pre_attn_scalar", "final_logit_softcapping"),
        biases=Biases.STATED,
        window=Window.PATTERN,
        window_pattern=6,
        local_theta=1e4,
        activation_field="hidden_activation",
    ),
    Architecture(
        name="Phi3ForCausalLM",
        model_type="phi3",
        gguf="phi3",
        defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
        may_lack_kv_heads=True,
        window=Window.ALL,
        partial_rotary=True,
    ),
    Architecture(
        name="SmolLM3ForCausalLM",
        model_type="smollm3",
        gguf="smollm3",
        defaults={"rope_theta": 2e6, "tie_word_embeddings": True},
        biases=Biases.STATED,
        mlp_bias=True,
        window=Window.WITHOUT_ROPE,
        rope_interval=4,
        gguf_permutes=True,
    ),
    Architecture(
        name="MixtralForCausalLM",
        model_type="mixtral",
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_experts_per_tok": 2},
        window=Window.ALL,
        experts=ExpertsRow(counts=("num_local_experts",), normalizes=True),
        gguf_permutes=True,
    ),
    Architecture(
        name="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        gguf="qwen3moe",
        features=Features(qk_norm=True),
        defaults={"num_experts_per_tok": 8},
        neutral={"decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False},
        biases=Biases.STATED,
        experts=ExpertsRow(
            counts=("num_experts", "num_local_experts"), intermediate_size="moe_intermediate_size"
        ),
    ),
    Architecture(
        name="OlmoeForCausalLM",
        model_type="olmoe",
        gguf="olmoe",
        features=Features(whole_qk_norm=True),
        defaults={"rms_norm_eps": 1e-5, "num_experts_per_tok": 8},
        neutral={"clip_qkv": None},
        may_lack_kv_heads=True,
        biases=Biases.STATED,
        experts=ExpertsRow(counts=("num_experts", "num_local_experts"), gguf_normalizes=False),
    ),
    Architecture(
        name="GptOssForCausalLM",
        model_type="gpt_oss",
        gguf="gpt-oss",
        features=Features(float32_norms=True, attention_sinks=True),
        defaults={
            "rms_norm_eps": 1e-5,
            "head_dim": 64,
            "attention_bias": True,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
            "rope_theta": 150000.0,
        },
        biases=Biases.STATED,
        window=Window.PATTERN,
        window_pattern=2,
        yarn_truncates=False,
        experts=ExpertsRow(counts=("num_local_experts",), normalizes=True, is_clamped=True),
    ),
)

BY_NAME = {row.name: row for row in TABLE}
BY_MODEL_TYPE = {row.model_type: row for row in TABLE}
BY_MULTIMODAL = {name: row for row in TABLE for name in row.multimodal}
BY_GGUF_NAME = {row.gguf: row for row in TABLE if row.gguf is not None}
