"""Turns the config.json of a Hugging Face directory into a ModelConfig.

Only the listed architectures are supported, so the possible fields are known: every field that
transformers' class for the architecture reads is either used or refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.errors import ConfigError
from .fields import Fields
from .model_config import DRAFT_HEAD, ModelConfig, RopeConfig, RopeScaling

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
_BY_MODEL_TYPE = dict(zip(("llama", "mistral", "qwen2", "qwen3"), ARCHITECTURES, strict=True))
_WITH_WINDOW_SWITCH = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")
_ROPE_KEYS = {
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "truncate",
    "type",
}
_ROPE_SCALINGS = {
    "default": RopeScaling.NONE,
    "linear": RopeScaling.LINEAR,
    "llama3": RopeScaling.LLAMA3,
    "yarn": RopeScaling.YARN,
}


def from_hf_config(config: Mapping[str, Any], *, source: str = "config.json") -> ModelConfig:
    """Turn a config.json of transformers 4 or 5 into a ModelConfig.

    Raises ConfigError if a field is missing or not supported.
    """
    fields = Fields(config, source)
    architecture = _architecture(fields)
    _refuse_quantization(fields)
    num_heads = fields.integer("num_attention_heads")
    max_positions = fields.integer("max_position_embeddings")
    rope = _rope(fields, max_positions)
    has_bias = architecture == "Qwen2ForCausalLM" or _bias(fields, architecture)
    return ModelConfig(
        architecture=architecture,
        num_layers=fields.integer("num_hidden_layers"),
        hidden_size=fields.integer("hidden_size"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, architecture, num_heads),
        head_size=_head_size(fields, architecture, num_heads),
        intermediate_size=fields.integer("intermediate_size"),
        vocab_size=fields.integer("vocab_size"),
        max_position_embeddings=stretched_context(rope, max_positions),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=has_bias,
        attention_output_bias=has_bias and architecture != "Qwen2ForCausalLM",
        mlp_bias=architecture == "LlamaForCausalLM" and fields.flag("mlp_bias", False),
        qk_norm=architecture == "Qwen3ForCausalLM",
        sliding_window=_sliding_window(fields, architecture, max_positions),
        hidden_act=fields.text("hidden_act", "silu"),
        draft_vocab_size=fields.optional_integer("draft_vocab_size"),
    )


def stretched_context(rope: RopeConfig, max_position_embeddings: int) -> int:
    """Return the maximum sequence length: files with YaRN often state the length without it."""
    if rope.scaling is not RopeScaling.YARN or rope.original_max_position_embeddings is None:
        return max_position_embeddings
    return max(max_position_embeddings, int(rope.original_max_position_embeddings * rope.factor))


def _architecture(fields: Fields) -> str:
    model_type = fields.text("model_type", "")
    if model_type == DRAFT_HEAD:
        raise ConfigError(
            f"{fields.source} describes a draft head, which is not a model of its own: set it with "
            "--speculative-model and serve its target"
        )
    named = fields.get("architectures") or [_BY_MODEL_TYPE.get(model_type)]
    if not isinstance(named, list) or named[0] not in ARCHITECTURES:
        shown = fields.get("architectures") or f"model_type {model_type!r}"
        raise ConfigError(
            f"{fields.source} describes {shown!s:.80}, which is not supported; "
            f"supported are {', '.join(ARCHITECTURES)}"
        )
    return str(named[0])


def _refuse_quantization(fields: Fields) -> None:
    quantization = fields.part("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") or "an unnamed method"
        raise ConfigError(
            f"{fields.source} has weights quantized with {method}, which is not supported; "
            "supported are unquantized safetensors and quantized GGUF files"
        )


def _bias(fields: Fields, architecture: str) -> bool:
    if architecture == "MistralForCausalLM":
        return False
    return fields.flag("attention_bias", False)


def _num_kv_heads(fields: Fields, architecture: str, num_heads: int) -> int:
    # Llama configs older than grouped-query attention lack the field. For other architectures
    # transformers' default fits only one size of the model, so the field is required.
    default = num_heads if architecture == "LlamaForCausalLM" else None
    return fields.integer("num_key_value_heads", default)


def _head_size(fields: Fields, architecture: str, num_heads: int) -> int:
    # As in transformers: the default is 128 for Qwen3, and derived for the others.
    if architecture == "Qwen3ForCausalLM":
        return fields.integer("head_dim", 128)
    return fields.integer("head_dim", fields.integer("hidden_size") // max(num_heads, 1))


def _sliding_window(fields: Fields, architecture: str, max_positions: int) -> int | None:
    if architecture == "LlamaForCausalLM" or not _uses_window(fields, architecture):
        return None
    window = fields.optional_integer("sliding_window")
    return None if window is None or window >= max_positions else window


def _uses_window(fields: Fields, architecture: str) -> bool:
    """Whether every layer has the window. Raises ConfigError when only some have it."""
    num_layers = fields.integer("num_hidden_layers")
    num_full = 0
    if architecture in _WITH_WINDOW_SWITCH:
        if not fields.flag("use_sliding_window", False):
            return False
        num_full = fields.integer("max_window_layers", 28)
    kinds = fields.get("layer_types") or (
        ["full_attention"] * num_full + ["sliding_attention"] * num_layers
    )
    kinds = set(kinds[:num_layers])
    if len(kinds) > 1 or not kinds <= {"full_attention", "sliding_attention"}:
        raise ConfigError(
            f"{fields.source} has layers of {', '.join(sorted(map(str, kinds)))}, which is not "
            "supported; supported is one sliding window for all layers, or none"
        )
    return kinds == {"sliding_attention"}


def _rope(fields: Fields, max_positions: int) -> RopeConfig:
    """Read `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (4)."""
    rope = fields.part("rope_scaling" if fields.get("rope_scaling") else "rope_parameters")
    rope = rope or Fields({}, fields.source)
    for part in (fields, rope):
        _refuse_partial_rotary(part)
    _refuse_unknown(rope)
    scaling = _scaling(rope)
    original = _original_context(fields, rope, max_positions)
    return RopeConfig(
        theta=rope.number("rope_theta", fields.number("rope_theta", 10000.0)),
        scaling=scaling,
        factor=_factor(rope, scaling, original, max_positions),
        original_max_position_embeddings=original,
        low_freq_factor=_number_of(rope, scaling, RopeScaling.LLAMA3, "low_freq_factor", 1.0),
        high_freq_factor=_number_of(rope, scaling, RopeScaling.LLAMA3, "high_freq_factor", 4.0),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=rope.optional_number("attention_factor"),
        mscale=rope.optional_number("mscale"),
        mscale_all_dim=rope.optional_number("mscale_all_dim"),
    )


def _scaling(rope: Fields) -> RopeScaling:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in _ROPE_SCALINGS:
        raise ConfigError(
            f"{rope.source} has rope_type {kind!r}, which is not supported; "
            f"supported are {', '.join(_ROPE_SCALINGS)}"
        )
    return _ROPE_SCALINGS[kind]


def _refuse_partial_rotary(fields: Fields) -> None:
    factor = fields.number("partial_rotary_factor", 1.0)
    if factor != 1.0:
        raise ConfigError(
            f"{fields.source} rotates only {factor} of each head (partial_rotary_factor), "
            "which is not supported"
        )


def _refuse_unknown(rope: Fields) -> None:
    unknown = sorted(rope.keys() - _ROPE_KEYS)
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)} in {rope.source} is not supported; "
            f"supported are {', '.join(sorted(_ROPE_KEYS))}"
        )


def _original_context(fields: Fields, rope: Fields, max_positions: int) -> int:
    inside = rope.integer("original_max_position_embeddings", max_positions)
    return fields.integer("original_max_position_embeddings", inside)


def _factor(rope: Fields, scaling: RopeScaling, original: int, max_positions: int) -> float:
    if scaling is RopeScaling.NONE:
        return 1.0
    default = max_positions / original if scaling is RopeScaling.YARN else None
    return rope.number("factor", default)


def _number_of(
    rope: Fields, scaling: RopeScaling, owner: RopeScaling, name: str, default: float
) -> float:
    """Read a number that the scaling `owner` requires; other scalings get the default."""
    return rope.number(name) if scaling is owner else default
