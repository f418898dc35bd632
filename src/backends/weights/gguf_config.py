"""Turns GGUF metadata into a ModelConfig.

Metadata describe everything special about a model. So unknown keys of the architecture are refused,
unless their value switches nothing on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.errors import ConfigError
from .fields import Fields
from .hf_config import stretched_context
from .model_config import ModelConfig, RopeConfig, RopeScaling

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
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
}


def from_gguf_metadata(
    metadata: Mapping[str, Any],
    *,
    tensor_shapes: Mapping[str, tuple[int, ...]],
    frequency_divisors: tuple[float, ...] | None = None,
    source: str = "the GGUF file",
) -> ModelConfig:
    """Turn a GGUF file's metadata and the shapes of its tensors into a ModelConfig.

    `tensor_shapes` are [out, in], by GGUF name. `frequency_divisors` are the numbers of the tensor
    "rope_freqs.weight", if there is one. Raises ConfigError if a key or value is not supported.
    """
    name = _architecture(Fields(metadata, source))
    fields = Fields(_of_architecture(metadata, name), f"{name}.* in {source}")
    _refuse_unknown(fields, metadata, name)
    num_heads = fields.integer("attention.head_count")
    hidden_size = fields.integer("embedding_length")
    head_size = fields.integer("attention.key_length", hidden_size // max(num_heads, 1))
    _check_head_size(fields, head_size)
    rope = _rope(fields, frequency_divisors)
    return ModelConfig(
        architecture=ARCHITECTURES[name],
        num_layers=fields.integer("block_count"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_size=head_size,
        intermediate_size=fields.integer("feed_forward_length"),
        vocab_size=_vocab_size(tensor_shapes, source),
        max_position_embeddings=stretched_context(rope, fields.integer("context_length")),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        tie_word_embeddings="output.weight" not in tensor_shapes,
        attention_bias="blk.0.attn_q.bias" in tensor_shapes,
        attention_output_bias="blk.0.attn_output.bias" in tensor_shapes,
        mlp_bias="blk.0.ffn_up.bias" in tensor_shapes,
        qk_norm=name == "qwen3",
        sliding_window=_sliding_window(fields),
    )


def _architecture(fields: Fields) -> str:
    name = fields.text("general.architecture")
    if name not in ARCHITECTURES:
        raise ConfigError(
            f"{fields.source} holds a model of architecture {name!r}, which is not supported; "
            f"supported are {', '.join(ARCHITECTURES)}"
        )
    return name


def _of_architecture(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}


def _refuse_unknown(fields: Fields, metadata: Mapping[str, Any], name: str) -> None:
    # Mistral's files have the architecture "llama" and one window for all layers. Windows of other
    # architectures alternate between layers, which is not supported.
    known = _KNOWN | {"attention.sliding_window"} if name == "llama" else _KNOWN
    for key, value in _of_architecture(metadata, name).items():
        if key not in known and not (key in _NEUTRAL and _NEUTRAL[key] == value):
            raise ConfigError(f"{key} = {value!r:.80} in {fields.source} is not supported")


def _check_head_size(fields: Fields, head_size: int) -> None:
    for key in ("attention.value_length", "rope.dimension_count"):
        value = fields.integer(key, head_size)
        if value != head_size:
            raise ConfigError(
                f"{key} in {fields.source} must be the head size {head_size}, got {value}"
            )


def _rope(fields: Fields, frequency_divisors: tuple[float, ...] | None) -> RopeConfig:
    kind = fields.text("rope.scaling.type", "none")
    if kind not in _ROPE_SCALINGS:
        raise ConfigError(
            f"rope.scaling.type {kind!r} in {fields.source} is not supported; "
            f"supported are {', '.join(_ROPE_SCALINGS)}"
        )
    scaling = _ROPE_SCALINGS[kind]
    return RopeConfig(
        theta=fields.number("rope.freq_base", 10000.0),
        scaling=scaling,
        factor=1.0 if scaling is RopeScaling.NONE else fields.number("rope.scaling.factor"),
        original_max_position_embeddings=fields.integer(
            "rope.scaling.original_context_length", fields.integer("context_length")
        ),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        frequency_divisors=frequency_divisors,
    )


def _sliding_window(fields: Fields) -> int | None:
    window = fields.optional_integer("attention.sliding_window")
    return None if window is None or window >= fields.integer("context_length") else window


def _vocab_size(tensor_shapes: Mapping[str, tuple[int, ...]], source: str) -> int:
    if "token_embd.weight" not in tensor_shapes:
        raise ConfigError(f"{source} lacks the tensor token_embd.weight")
    return tensor_shapes["token_embd.weight"][0]
