"""Tiny random models of any decoder class of transformers, from its default configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig
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
_DOTS3 = {
    "num_key_value_heads": 4,
    "head_dim": 16,
    "index_topk": 16,
    "index_head_dim": 16,
    "index_n_heads": 4,
    "shared_experts_intermediate_size": 32,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 16,
    "swa_qk_nope_head_dim": 8,
    "swa_v_head_dim": 16,
}
_DOTS3_ADAPTER = {
    "num_hidden_layers": ...,
    "adapter_in_dim": 64,
    "adapter_input_size": 64,
    "adapter_out_dim": 64,
}
_INDEXER = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 32,
    "indexer_compress_ratio": 4,
}
_OWN: Mapping[str, Mapping[str, Any]] = {
    "axk1": {"num_key_value_heads": 4},
    "bamba": {"attn_layer_indices": [1, 3]},
    "blt": {
        "encoder_hash_byte_group_vocab": 256,
        "encoder_hash_byte_group_size": [3, 4],
        "encoder_config": {"hidden_size_global": 64, "num_key_value_heads": 4},
        "decoder_config": {"hidden_size_global": 64, "num_key_value_heads": 4},
        "global_config": {"num_key_value_heads": 4},
        "patcher_config": {"num_key_value_heads": 4},
    },
    "cohere_compass_text": {
        "num_key_value_heads": 4,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
            }
        },
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
        "ffn_config": {},
    },
    "deepseek_v3": {"num_key_value_heads": 4},
    "deepseek_v32": {"num_key_value_heads": 4},
    "deepseek_v2": {"num_key_value_heads": 4, "num_experts_per_tok": 2, "topk_method": "greedy"},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note": {
        "text_config": _DOTS3,
        "vision_config": _DOTS3_ADAPTER,
        "audio_config": _DOTS3_ADAPTER,
    },
    "dots3_note_text": _DOTS3,
    "falcon_h1": {"mamba_d_ssm": 128},
    "fuyu": {"text_config": {"num_key_value_heads": 4}},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_assistant": {
        "text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    },
    "gemma4_text": {"global_head_dim": 16, "num_global_key_value_heads": 2},
    "gemma4_unified_text": {"global_head_dim": 16, "num_global_key_value_heads": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], LAYERS // 2]]},
    "git": {"vision_config": {"image_size": 32}},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "moe_topk": [2] * LAYERS, "num_shared_expert": [1] * LAYERS},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "full_attention"]},
    "longcat_flash": {"head_dim": 8, "num_key_value_heads": 4},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1},
    "ministral": {"head_dim": 16},
    "musicgen": {"decoder": {"num_codebooks": 1}},
    "musicgen_melody": {"decoder": {"num_codebooks": 1}},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "phi4_multimodal": {
        "vision_config": {"image_size": 32, "crop_size": 32},
        "audio_config": {
            "num_blocks": 1,
            "ext_pw_out_channel": 64,
            "depthwise_separable_out_channel": 64,
            "nemo_conv_channels": 64,
        },
    },
    "prophetnet": {
        "num_hidden_layers": ...,
        "num_encoder_layers": LAYERS,
        "num_decoder_layers": LAYERS,
        "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4,
    },
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "reformer": {
        "attn_layers": ["local"] * LAYERS,
        "axial_pos_shape": [16, 16],
        "axial_pos_embds_dim": [16, 48],
        "attention_head_size": 16,
        "feed_forward_size": 96,
    },
    "xlnet": {"max_position_embeddings": ..., "d_inner": 96},
    "xlstm": {"v_head_dim": ...},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
"""Fields of single types, which fit the sizes above or show a feature. `...`: the default."""
_LEFT_OUT: Sequence[Sequence[str]] = (
    (),
    ("num_key_value_heads",),
    ("head_dim",),
    ("head_dim", "num_key_value_heads"),
    ("pad_token_id",),
)
"""Sizes that keep their defaults, tried in this order until a model runs."""


def tiny_model(model_type: str) -> tuple[Any, Any]:
    """A model with distant logits, and the configuration of its checkpoint.

    The configuration differs from the model's if that is a part of it (`text_config`). A model that
    cannot run on token ids alone is returned, too. Raises what its class raises if no tiny variant
    can be made.
    """
    errors: list[Exception] = []
    made = None
    for left_out in _LEFT_OUT:
        try:
            made = model, _ = _build(model_type, left_out)
            own_logits(model, [1, 2, 3, 4, 5])
            return made
        except Exception as error:  # any class of transformers
            errors.append(error)
    if made is None:
        raise errors[0]
    return made


def own_logits(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    """float32 [t, v], by the model's own forward pass."""
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([token_ids]), use_cache=False)
    logits_tv: torch.Tensor = output.logits[0].float()
    return logits_tv


def _build(model_type: str, left_out: Sequence[str]) -> tuple[Any, Any]:
    kind: Any = CONFIG_MAPPING[model_type]
    config = kind(**_small(kind, left_out, _OWN.get(model_type, {})))
    torch.manual_seed(11)
    decoder = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])
    model = decoder(_part_for(decoder, config)).eval()
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in _matrices(model):
            gain = 2.0 if any(part in name for part in ("embed", "head", "wte", "q_proj")) else 1.0
            parameter.normal_(0.0, gain * parameter.shape[-1] ** -0.5, generator=generator)
    return model, config


def _part_for(decoder: Any, config: Any) -> Any:
    """The part of a multimodal model's configuration that its decoder takes."""
    if isinstance(config, decoder.config_class):
        return config
    parts = [getattr(config, name) for name in config.sub_configs]
    return next((one for one in parts if isinstance(one, decoder.config_class)), config)


def _small(kind: Any, left_out: Sequence[str], own: Mapping[str, Any]) -> dict[str, Any]:
    default = _default(kind)
    names = [
        name for name in _SIZES if name not in left_out and (name in _ALWAYS or _has(default, name))
    ]
    changes = {name: _SIZES[name] for name in names}
    changes |= own
    for name, part in _parts(kind, own).items():
        changes[name] = _small(part, left_out, own.get(name, {})) | {"model_type": part.model_type}
    return {name: value for name, value in changes.items() if value is not ...}


def _parts(kind: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """The classes of the parts of a configuration that the decoder needs, such as `text_config`."""
    defaults = getattr(kind, "sub_configs_defaults", None) or {}
    return {
        name: CONFIG_MAPPING[defaults[name].model_type] if part is AutoConfig else part
        for name, part in kind.sub_configs.items()
        if name in ("text_config", "decoder", *own)
    }


def _default(kind: Any) -> Any:
    """The default configuration; the class itself if it has no valid defaults."""
    try:
        return kind()
    except Exception:  # any class of transformers
        return kind


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
