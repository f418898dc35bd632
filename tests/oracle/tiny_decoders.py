"""Tiny random models of any decoder class of transformers, from its default configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

MODEL_TYPES: tuple[str, ...] = tuple(
    model_type
    for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    if not name.endswith("ForConditionalGeneration")
)
"""All types of models that transformers has a decoder class for."""
LAYERS = 4
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token", "top_k_experts")
_SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 192),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "word_embed_proj_dim", "dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "kv_n_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size"), 96),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "dense_intermediate_size"), 96),
    **dict.fromkeys(("head_dim", "attention_head_dim", "v_head_dim", "global_head_dim"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 256),
    **dict.fromkeys(_EXPERTS, 8),
    **dict.fromkeys(_CHOSEN, 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_expert_groups"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("expert_ffn_hidden_size", "shared_intermediate_size"), 32),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("sliding_window", "window_size", "attention_chunk_size"), 24),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_d_state", "ssm_state_size"), 16),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("hidden_size_per_layer_input", "lru_width"), 64),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    "first_k_dense_replace": 1,
    "rotary_dim": 8,
    "is_decoder": True,
    "is_encoder_decoder": False,
}
"""Small values of the fields that have a size, by all names that transformers uses for them."""
_ALWAYS = ("bos_token_id", "eos_token_id", "pad_token_id", "is_decoder", "is_encoder_decoder")
_OWN: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "axk1": {"num_key_value_heads": 4},
    "deepseek_v3": {"num_key_value_heads": 4},
    "deepseek_v32": {"num_key_value_heads": 4},
    "deepseek_v2": {"num_key_value_heads": 4, "num_experts_per_tok": 2, "topk_method": "greedy"},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "gemma4_text": {"global_head_dim": 16, "num_global_key_value_heads": 2},
    "gemma4_unified_text": {"global_head_dim": 16, "num_global_key_value_heads": 2},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1},
}
"""Fields of single types, which fit the sizes above or show a feature."""
_LEFT_OUT: Sequence[Sequence[str]] = (
    (),
    ("num_key_value_heads",),
    ("head_dim",),
    ("head_dim", "num_key_value_heads"),
    ("pad_token_id",),
)
"""Sizes that keep their defaults, tried in this order until a model runs."""


def tiny_model(model_type: str) -> Any:
    """A model with distant logits. Raises what its class raises if no tiny variant runs."""
    errors: list[Exception] = []
    for left_out in _LEFT_OUT:
        try:
            model = _build(model_type, left_out)
            with torch.inference_mode():
                model(input_ids=torch.arange(1, 6).unsqueeze(0), use_cache=False)
            return model
        except Exception as error:  # any class of transformers
            errors.append(error)
    raise errors[0]


def _build(model_type: str, left_out: Sequence[str]) -> Any:
    kind: Any = CONFIG_MAPPING[model_type]
    config = kind(**_small(kind, left_out) | dict(_OWN.get(model_type, {})))
    torch.manual_seed(11)
    model = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])(config).eval()
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in _matrices(model):
            gain = 2.0 if any(part in name for part in ("embed", "head", "wte", "q_proj")) else 1.0
            parameter.normal_(0.0, gain * parameter.shape[-1] ** -0.5, generator=generator)
    return model


def _small(kind: Any, left_out: Sequence[str]) -> dict[str, Any]:
    default = kind()
    changes = {
        name: value
        for name, value in _SIZES.items()
        if name in _ALWAYS or (name not in left_out and _has(default, name))
    }
    changes = {name: value for name, value in changes.items() if name not in left_out}
    for name, part in (getattr(kind, "sub_configs", None) or {}).items():
        if name == "text_config" and hasattr(part, "model_type"):
            changes[name] = part(**_small(part, left_out)).to_dict()
    return changes


def _has(default: Any, name: str) -> bool:
    """Whether the field counts: a model without a feature has None or 0 there."""
    try:
        value = getattr(default, name, None)
    except Exception:  # it may vary between layers
        return True
    return value is not None and value != 0


def _matrices(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and "conv" not in name and "A_log" not in name:
            yield name, parameter
