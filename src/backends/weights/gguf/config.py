"""Turns GGUF metadata into a ModelConfig.

Metadata describe everything special about a model. So unknown keys of the architecture are refused,
unless their value switches nothing on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....core.errors import ConfigError
from ..config.architectures import BY_GGUF_NAME, BY_NAME, Architecture, Window
from ..config.fields import Fields
from ..config.layer_kinds import every_nth, make_layers
from ..config.model_config import ExpertsConfig, ModelConfig
from ..config.rope_config import RopeConfig, RopeScaling, stretched_context
from .names import FREQUENCIES, LONG_FREQUENCIES, SHORT_FREQUENCIES

_KNOWN = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "vocab_size",
}
_OF_WINDOW = {"attention.sliding_window", "attention.sliding_window_pattern"}
_KNOWN_ALSO: Mapping[str, set[str]] = {
    "llama": {"attention.sliding_window", "expert_count", "expert_used_count"},
    "gemma2": _OF_WINDOW | {"attn_logit_softcapping", "final_logit_softcapping"},
    "gpt-oss": {
        *_OF_WINDOW,
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "rope.freq_base_swa",
    },
    "gemma3": _OF_WINDOW | {"final_logit_softcapping", "rope.freq_base_swa"},
    "olmoe": {"expert_count", "expert_used_count", "expert_feed_forward_length"},
    "qwen3moe": {"expert_count", "expert_used_count", "expert_feed_forward_length"},
    "phi3": {"attention.sliding_window", "rope.scaling.attn_factor"},
}
"""Keys that only some architectures have. Windows of Qwen files are not known: the files do not say
which layers have them."""
_NEUTRAL: Mapping[str, Any] = {
    "attention.causal": True,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scale_linear": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "tensor_data_layout": "Meta AI original pth",
}
_ROPE_SCALINGS = {
    "none": RopeScaling.NONE,
    "linear": RopeScaling.LINEAR,
    "yarn": RopeScaling.YARN,
    "longrope": RopeScaling.LONGROPE,
}
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""Numbers of layers of the models whose query_pre_attn_scalar is hidden size / heads. Others have
the head size. The files do not state it; llama.cpp distinguishes the models in the same way."""
_DEFAULT_CAPS = {"gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}}
"""llama.cpp's values when the file has none."""
_DEFAULT_WINDOWS = {"gemma2": 4096}


def from_gguf_metadata(
    metadata: Mapping[str, Any],
    *,
    tensor_shapes: Mapping[str, tuple[int, ...]],
    divisors: Mapping[str, tuple[float, ...]] | None = None,
    source: str = "the GGUF file",
) -> ModelConfig:
    """Turn a GGUF file's metadata and the shapes of its tensors into a ModelConfig.

    `tensor_shapes` are [out, in], by GGUF name. `divisors` are the numbers of the tensors
    CONFIGURING that the file has. Raises ConfigError if a key or value is not supported.
    """
    row, name = find_row(metadata, source)
    fields = Fields(
        {**_DEFAULT_CAPS.get(name, {}), **_of_architecture(metadata, name)}, f"{name}.* in {source}"
    )
    _refuse_unknown(fields, metadata, name)
    num_heads = fields.integer("attention.head_count")
    hidden_size = fields.integer("embedding_length")
    head_size = fields.integer("attention.key_length", hidden_size // max(num_heads, 1))
    rope = _rope(fields, row, divisors or {})
    return ModelConfig(
        architecture=row.name,
        num_layers=fields.integer("block_count"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_size=head_size,
        intermediate_size=fields.integer("feed_forward_length"),
        vocab_size=_vocab_size(tensor_shapes, source),
        max_position_embeddings=stretched_context(rope, fields.integer("context_length")),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        features=row.features,
        rotary_size=_rotary_size(fields, row, head_size),
        tie_word_embeddings="output.weight" not in tensor_shapes,
        attention_bias=_has_bias(tensor_shapes, "attn_q", "attn_qkv"),
        attention_output_bias=_has_bias(tensor_shapes, "attn_output"),
        mlp_bias=_has_bias(tensor_shapes, "ffn_up"),
        query_pre_attn_scalar=_scalar(fields, name, hidden_size / max(num_heads, 1), head_size),
        attention_soft_cap=fields.optional_number("attn_logit_softcapping"),
        logits_soft_cap=fields.optional_number("final_logit_softcapping"),
        experts=_experts(fields, row),
        hidden_act=row.defaults.get(row.activation_field, "silu"),
        **_layers(fields, row, name, rope),
    )


def find_row(metadata: Mapping[str, Any], source: str) -> tuple[Architecture, str]:
    """Return the architecture of a file and its GGUF name. Raises ConfigError if it is unknown."""
    name = Fields(metadata, source).text("general.architecture")
    if name not in BY_GGUF_NAME:
        raise ConfigError(
            f"{source} holds a model of architecture {name!r:.80}, which is not supported. "
            "--model-impl transformers may run a Hugging Face directory of it"
        )
    if name == "llama" and metadata.get("llama.expert_count"):
        return BY_NAME["MixtralForCausalLM"], name
    return BY_GGUF_NAME[name], name


def _of_architecture(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}


def _refuse_unknown(fields: Fields, metadata: Mapping[str, Any], name: str) -> None:
    known = _KNOWN | _KNOWN_ALSO.get(name, set())
    for key, value in _of_architecture(metadata, name).items():
        if key not in known and not (key in _NEUTRAL and _NEUTRAL[key] == value):
            raise ConfigError(f"{key} = {value!r:.80} in {fields.source} is not supported")


def _rotary_size(fields: Fields, row: Architecture, head_size: int) -> int | None:
    """Return how much of a head is rotated; None: all. Also check the length of values."""
    sizes = {
        key: fields.integer(key, head_size)
        for key in ("attention.value_length", "rope.dimension_count")
    }
    if row.partial_rotary and sizes["rope.dimension_count"] < head_size:
        return sizes.pop("rope.dimension_count")
    for key, value in sizes.items():
        if value != head_size:
            raise ConfigError(
                f"{key} in {fields.source} must be the head size {head_size}, got {value}"
            )
    return None


def _has_bias(tensor_shapes: Mapping[str, tuple[int, ...]], *names: str) -> bool:
    return any(f"blk.0.{name}.bias" in tensor_shapes for name in names)


def _scalar(fields: Fields, name: str, size_per_head: float, head_size: int) -> float | None:
    if name not in _GEMMA_27B_LAYERS:
        return None
    is_27b = fields.integer("block_count") == _GEMMA_27B_LAYERS[name]
    return size_per_head if is_27b else float(head_size)


def _experts(fields: Fields, row: Architecture) -> ExpertsConfig | None:
    if row.experts is None:
        return None
    size = fields.integer("expert_feed_forward_length", fields.integer("feed_forward_length"))
    return ExpertsConfig(
        num_experts=fields.integer("expert_count"),
        num_active=fields.integer("expert_used_count"),
        intermediate_size=size,
        normalizes_shares=row.experts.gguf_normalizes,
        has_biases=row.experts.is_clamped,
        swiglu_limit=7.0 if row.experts.is_clamped else None,  # llama.cpp's constant
    )


def _rope(
    fields: Fields, row: Architecture, divisors: Mapping[str, tuple[float, ...]]
) -> RopeConfig:
    kind = fields.text("rope.scaling.type", "none")
    if kind not in _ROPE_SCALINGS:
        raise ConfigError(
            f"rope.scaling.type {kind!r} in {fields.source} is not supported; "
            f"supported: {', '.join(_ROPE_SCALINGS)}"
        )
    scaling = _ROPE_SCALINGS[kind]
    if LONG_FREQUENCIES in divisors:
        scaling = RopeScaling.LONGROPE  # files of Phi-3 do not state the type
    context = fields.integer("context_length")
    original = fields.integer("rope.scaling.original_context_length", context)
    return RopeConfig(
        theta=fields.number("rope.freq_base", 10000.0),
        scaling=scaling,
        factor=_factor(fields, scaling, context / max(original, 1)),
        original_max_position_embeddings=original,
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        truncate=row.yarn_truncates,
        attention_factor=(
            fields.optional_number("rope.scaling.attn_factor")
            if scaling is RopeScaling.LONGROPE
            else None
        ),
        short_factors=divisors.get(SHORT_FREQUENCIES, ()),
        long_factors=divisors.get(LONG_FREQUENCIES, ()),
        frequency_divisors=divisors.get(FREQUENCIES),
    )


def _factor(fields: Fields, scaling: RopeScaling, ratio: float) -> float:
    if scaling is RopeScaling.LONGROPE:
        return fields.number("rope.scaling.factor", ratio)
    return 1.0 if scaling is RopeScaling.NONE else fields.number("rope.scaling.factor")


def _layers(fields: Fields, row: Architecture, name: str, rope: RopeConfig) -> dict[str, Any]:
    """Return the fields of ModelConfig about how layers attend."""
    num_layers = fields.integer("block_count")
    is_nope = every_nth(row.rope_interval or 0, num_layers)
    window = fields.integer("attention.sliding_window", _DEFAULT_WINDOWS.get(name, 0))
    context = stretched_context(rope, fields.integer("context_length"))
    local_rope = rope
    if row.local_theta is not None:
        local_rope = RopeConfig(theta=fields.number("rope.freq_base_swa", row.local_theta))
    is_local = _local(fields, row, num_layers) if window else [False] * num_layers
    return make_layers(
        is_local,
        [not skips for skips in is_nope],
        None if window >= context else window or None,
        rope,
        local_rope,
    )


def _local(fields: Fields, row: Architecture, num_layers: int) -> list[bool]:
    """Return which layers have the window: all, all but every n-th, or those that a list names."""
    if row.window is not Window.PATTERN:
        return [True] * num_layers
    key = "attention.sliding_window_pattern"
    listed = fields.get(key)
    if isinstance(listed, list):
        if len(listed) != num_layers:
            raise ConfigError(
                f"{key} in {fields.source} must have {num_layers} elements, got {len(listed)}"
            )
        return [bool(is_local) for is_local in listed]
    interval = fields.integer(key, row.window_pattern)
    return [not is_nth for is_nth in every_nth(interval, num_layers)]


def _vocab_size(tensor_shapes: Mapping[str, tuple[int, ...]], source: str) -> int:
    if "token_embd.weight" not in tensor_shapes:
        raise ConfigError(f"{source} lacks the tensor token_embd.weight")
    return tensor_shapes["token_embd.weight"][0]
