"""config.json: what is understood, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.backends.weights.hf_config import from_hf_config
from tokenmill.backends.weights.model_config import RopeScaling
from tokenmill.core.errors import ConfigError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"]}


def test_reads_the_sizes() -> None:
    config = from_hf_config(LLAMA)
    assert (config.num_heads, config.num_kv_heads, config.head_size) == (4, 2, 16)
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (2, 64, 96)
    assert (config.vocab_size, config.max_position_embeddings) == (100, 2048)
    assert config.rms_norm_eps == 1e-5
    assert config.attention_scale == 0.25


def test_an_old_llama_without_kv_heads_has_one_per_query_head() -> None:
    config = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    assert from_hf_config(config).num_kv_heads == 4


def test_the_model_type_stands_in_for_missing_architectures() -> None:
    config = {k: v for k, v in LLAMA.items() if k != "architectures"}
    assert from_hf_config(config | {"model_type": "qwen3"}).architecture == "Qwen3ForCausalLM"
    with pytest.raises(ConfigError, match=r"model_type 'gpt2'.*supported are LlamaForCausalLM"):
        from_hf_config(config | {"model_type": "gpt2"})
    with pytest.raises(ConfigError, match=r"model_type in config.json must be a string"):
        from_hf_config(config | {"model_type": ["llama"]})


def test_a_draft_head_is_no_model() -> None:
    with pytest.raises(ConfigError, match=r"a draft head, which is not a model of its own"):
        from_hf_config({"model_type": "draft_head"})


def test_rope_of_transformers_4_and_5_mean_the_same() -> None:
    scaling = {"factor": 4.0, "original_max_position_embeddings": 512}
    old = {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", **scaling}}
    new = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, **scaling}}
    assert from_hf_config(LLAMA | old) == from_hf_config(LLAMA | new)
    assert from_hf_config(LLAMA | new).rope.theta == 5e5


def test_no_scaling_is_written_in_several_ways() -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"rope_scaling": None},
        {"rope_scaling": {}},
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ]
    for rope in ways:
        config = from_hf_config(LLAMA | {"rope_theta": 10000.0} | rope)
        assert config.rope.scaling is RopeScaling.NONE
        assert (config.rope.theta, config.rope.factor) == (10000.0, 1.0)


def test_yarn_stretches_the_context_even_when_the_config_forgot_to() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert from_hf_config(LLAMA | {"rope_scaling": rope}).max_position_embeddings == 8192


def test_yarn_s_factor_defaults_to_the_ratio_of_the_contexts() -> None:
    rope = {"rope_type": "yarn", "original_max_position_embeddings": 512}
    assert from_hf_config(LLAMA | {"rope_scaling": rope}).rope.factor == 4.0


def test_qwen2_has_biases_on_q_k_and_v_only() -> None:
    config = from_hf_config(QWEN2)
    assert config.attention_bias
    assert not config.attention_output_bias


def test_a_window_as_long_as_the_context_is_none() -> None:
    assert from_hf_config(MISTRAL | {"sliding_window": 2048}).sliding_window is None
    assert from_hf_config(MISTRAL | {"sliding_window": 2047}).sliding_window == 2047
    assert from_hf_config(MISTRAL | {"sliding_window": None}).sliding_window is None


def test_qwen_s_window_counts_only_when_it_is_switched_on_for_every_layer() -> None:
    window = {"sliding_window": 8, "max_window_layers": 0}
    assert from_hf_config(QWEN2 | window).sliding_window is None
    assert from_hf_config(QWEN2 | window | {"use_sliding_window": True}).sliding_window == 8
    off = window | {"use_sliding_window": True, "max_window_layers": 2}
    assert from_hf_config(QWEN2 | off).sliding_window is None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown architecture": (
        {"architectures": ["MixtralForCausalLM"]},
        r"MixtralForCausalLM.*supported are LlamaForCausalLM, MistralForCausalLM",
    ),
    "architectures of the wrong kind": ({"architectures": 5}, "describes 5"),
    "quantized weights": ({"quantization_config": {"quant_method": "awq"}}, "quantized with awq"),
    "partial rotary": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "dynamic rope": ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_type 'dynamic'"),
    "longrope": ({"rope_scaling": {"type": "longrope"}}, "rope_type 'longrope'"),
    "unknown rope number": ({"rope_scaling": {"mrope_section": [1]}}, "mrope_section"),
    "rope per kind of layer": (
        {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
        "full_attention in rope_parameters",
    ),
    "rope that is no object": ({"rope_scaling": 4}, "rope_scaling .* must be an object"),
    "linear rope without factor": ({"rope_scaling": {"type": "linear"}}, "lacks factor"),
    "llama3 rope without numbers": (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        "lacks low_freq_factor",
    ),
    "activation": ({"hidden_act": "relu"}, "activation 'relu' is not supported.*silu"),
    "missing size": ({"hidden_size": None}, "config.json lacks hidden_size"),
    "size of the wrong kind": (
        {"hidden_size": "64"},
        "hidden_size .* must be an integer, got '64'",
    ),
    "number of the wrong kind": ({"rms_norm_eps": "x"}, "rms_norm_eps .* must be a number"),
    "infinite number": ({"rms_norm_eps": float("inf")}, "must be a finite number"),
    "switch of the wrong kind": ({"mlp_bias": 1}, "mlp_bias .* must be true or false"),
    "no heads": ({"num_attention_heads": 0}, "num_heads must be at least 1"),
    "uneven heads": ({"num_key_value_heads": 3}, "4 query heads cannot share 3 KV heads"),
    "odd head size": ({"head_dim": 15}, "even head size"),
    "negative theta": ({"rope_theta": -1.0}, "theta and factor must be positive"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_what_it_would_compute_wrongly(case: str) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        from_hf_config(LLAMA | changes)


def test_refuses_windows_that_differ_between_layers() -> None:
    mixed = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    with pytest.raises(ConfigError, match=r"layers of full_attention, sliding_attention"):
        from_hf_config(QWEN2 | mixed)
    kinds = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    with pytest.raises(ConfigError, match="one sliding window for all layers"):
        from_hf_config(MISTRAL | kinds)
    with pytest.raises(ConfigError, match="sliding_window must be at least 1"):
        from_hf_config(MISTRAL | {"sliding_window": 0})
