"""config.json: what is understood, and what is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from transformers import Gemma3Config

from tokenmill.backends.weights.config.architectures import BY_NAME
from tokenmill.backends.weights.config.rope_config import RopeScaling
from tokenmill.backends.weights.huggingface.config import from_hf_config
from tokenmill.core.errors import ConfigError

from ..hostile_directories import ABSURD

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
SECTIONS = {"type": "mrope", "mrope_section": [2, 3, 3]}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
EXTRA: dict[str, Any] = {
    "head_dim": 16,
    "layer_types": ["full_attention", "sliding_attention"],
    "max_window_layers": 1,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "no_rope_layer_interval": 2,
    "no_rope_layers": [1, 0],
    "partial_rotary_factor": 1.0,
    "query_pre_attn_scalar": 24,
    "rope_local_base_freq": 500.0,
    "rope_theta": 1e6,
    "sliding_window": 8,
    "sliding_window_pattern": 2,
    "use_sliding_window": False,
}
"""Fields that only some architectures have."""
GEMMA2 = LLAMA | {"architectures": ["Gemma2ForCausalLM"]}
GEMMA3 = LLAMA | {"architectures": ["Gemma3ForCausalLM"]}
PHI3 = LLAMA | {"architectures": ["Phi3ForCausalLM"]}
SMOLLM3 = LLAMA | {"architectures": ["SmolLM3ForCausalLM"]}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"]}
ON = {"use_sliding_window": True, "max_window_layers": 0}
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
    with pytest.raises(ConfigError, match=r"describes model_type 'gpt2', which is not a native"):
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


@pytest.mark.parametrize("config", [MISTRAL, QWEN2 | ON, QWEN3 | ON])
def test_a_window_that_is_not_stated_is_that_of_transformers_class(config: Any) -> None:
    assert from_hf_config(config | {"max_position_embeddings": 8192}).sliding_window == 4096


def test_a_window_counts_in_the_context_that_yarn_stretches() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    config = from_hf_config(MISTRAL | {"sliding_window": 2048, "rope_scaling": yarn})
    assert (config.max_position_embeddings, config.sliding_window) == (8192, 2048)


def test_qwen_s_window_counts_only_when_it_is_switched_on_for_every_layer() -> None:
    window = {"sliding_window": 8, "max_window_layers": 0}
    assert from_hf_config(QWEN2 | window).sliding_window is None
    assert from_hf_config(QWEN2 | window | {"use_sliding_window": True}).sliding_window == 8
    off = window | {"use_sliding_window": True, "max_window_layers": 2}
    assert from_hf_config(QWEN2 | off).sliding_window is None


GEMMA3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0",
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "vision_use_head": False,
    },
}
"""config.json of google/gemma-3-4b-it."""
MISTRAL3: dict[str, Any] = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3",
    "text_config": LLAMA | {"architectures": None, "model_type": "mistral"},
    "vision_config": {"model_type": "pixtral"},
}


def test_gemma_3_4b_leaves_most_of_its_sizes_to_transformers() -> None:
    config = from_hf_config(GEMMA3_4B)
    reference = Gemma3Config(**GEMMA3_4B).text_config
    assert config.architecture == "Gemma3ForCausalLM"
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (34, 2560, 10240)
    assert config.num_heads == reference.num_attention_heads == 8
    assert config.num_kv_heads == reference.num_key_value_heads == 4
    assert config.head_size == reference.head_dim == 256
    assert config.vocab_size == reference.vocab_size == 262208
    assert config.max_position_embeddings == reference.max_position_embeddings == 131072
    assert config.query_pre_attn_scalar == reference.query_pre_attn_scalar
    assert config.rms_norm_eps == reference.rms_norm_eps
    assert config.hidden_act == reference.hidden_activation
    assert config.tie_word_embeddings
    assert windows(GEMMA3_4B) == [
        1024 if kind == "sliding_attention" else None for kind in reference.layer_types
    ]
    ropes = [kind.rope for kind in config.layers if kind.rope is not None]
    assert {(rope.theta, rope.factor) for rope in ropes} == {(1e4, 1.0), (1e6, 8.0)}
    assert ropes[5].factor == 8.0


def test_the_text_model_of_a_multimodal_one_is_read_as_if_it_stood_alone() -> None:
    alone = from_hf_config(MISTRAL)
    assert from_hf_config(MISTRAL3) == alone
    unnamed = {
        name: value for name, value in MISTRAL3["text_config"].items() if "_type" not in name
    }
    assert from_hf_config(MISTRAL3 | {"text_config": unnamed}) == alone
    tied = from_hf_config(MISTRAL | {"tie_word_embeddings": True})
    assert from_hf_config(MISTRAL3 | {"tie_word_embeddings": True}) == tied
    inner = MISTRAL3["text_config"] | {"tie_word_embeddings": True}
    assert from_hf_config(MISTRAL3 | {"text_config": inner}) == tied


@pytest.mark.parametrize(
    ("text_config", "message"),
    [
        (None, r"^config.json lacks text_config, the sizes of the text model"),
        (["hidden_size"], r"text_config in config.json must be an object, got \['hidden"),
        ({}, r"text_config in config.json lacks"),
        ({"model_type": "ministral3"}, r"text_config in .* model_type 'ministral3', which is no"),
        ({"model_type": ["mistral"]}, r"model_type in text_config in .* must be a string"),
    ],
)
def test_a_multimodal_model_whose_text_model_is_not_described_is_refused(
    text_config: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        from_hf_config(MISTRAL3 | {"text_config": text_config})


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a number that is none": ({"rms_norm_eps": float("nan")}, "must be a finite number, got nan"),
    "a vocabulary that fills the memory": (
        {"vocab_size": 10**9},
        "vocab_size in config.json must be at most 16777216, got 1000000000",
    ),
    "unknown architecture": (
        {"architectures": ["FalconForCausalLM"]},
        "describes FalconForCausalLM, which is not a native architecture",
    ),
    "architectures of the wrong kind": ({"architectures": 5}, "describes 5"),
    "partial rotary": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "rope of an unknown kind": ({"rope_scaling": {"type": "axial"}}, "rope_type 'axial'"),
    "longrope without factors": ({"rope_scaling": {"type": "longrope"}}, "lacks short_factor"),
    "longrope with too few factors": (
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        "need 8 numbers in short_factor, got 1",
    ),
    "longrope with factors that are no list": (
        {"rope_scaling": {"type": "longrope", "short_factor": 1, "long_factor": [1.0]}},
        "short_factor .* must be a list of numbers, got 1",
    ),
    "longrope with factors that are not positive": (
        {"rope_scaling": {"type": "longrope", "short_factor": [0] * 8, "long_factor": [1] * 8}},
        "divisors of rotary frequencies must be positive",
    ),
    "unknown rope number": ({"rope_scaling": {"mrope_section": [1]}}, "mrope_section"),
    "partial rotary in a part for a kind of layer": (
        {
            "architectures": ["Gemma3ForCausalLM"],
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_theta": 1e4},
            },
        },
        "has layers with partial_rotary_factor 0.5 and 1.0",
    ),
    "partial rotary in all parts": (
        {
            "architectures": ["Gemma3ForCausalLM"],
            "rope_parameters": {
                "full_attention": {"partial_rotary_factor": 0.5},
                "sliding_attention": {"partial_rotary_factor": 0.5},
            },
        },
        "rotates only 0.5 of each head",
    ),
    "rope per kind of layer": (
        {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
        "full_attention in rope_parameters",
    ),
    "rope that is no object": ({"rope_scaling": 4}, "rope_scaling .* must be an object"),
    **{
        f"yarn with {name} {value}": (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0, name: value}},
            message,
        )
        for name, value, message in (
            ("rope_theta", 1.0, "theta above 1"),
            ("beta_fast", 0.0, "beta_fast and beta_slow between"),
            ("beta_slow", 1e-320, "beta_fast and beta_slow between"),
            ("mscale_all_dim", -10 / math.log(2), "not negative"),
            ("original_max_position_embeddings", -4, "of at least 2"),
        )
    },
    "longrope of a context of 1": (
        {
            "original_max_position_embeddings": 1,
            "rope_scaling": {"type": "longrope", "short_factor": [1] * 8, "long_factor": [1] * 8},
        },
        "of at least 2",
    ),
    "linear rope without factor": ({"rope_scaling": {"type": "linear"}}, "lacks factor"),
    "llama3 rope without numbers": (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        "lacks low_freq_factor",
    ),
    "llama3 rope that divides by 0": (
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 0.0,
                "high_freq_factor": 4.0,
            }
        },
        "needs a positive low_freq_factor",
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


def test_refuses_kinds_of_layers_that_it_does_not_know() -> None:
    for kinds in (["chunked_attention"] * 2, ["full_attention"], "full_attention"):
        with pytest.raises(ConfigError, match=r"layer_types .* must have full_attention or"):
            from_hf_config(MISTRAL | {"layer_types": kinds})
    with pytest.raises(ConfigError, match="sliding_window must be at least 1"):
        from_hf_config(MISTRAL | {"sliding_window": 0})
    for layers in ([1], [1, 2], "10"):
        with pytest.raises(ConfigError, match=r"no_rope_layers .* must have 1 or 0 for each"):
            from_hf_config(SMOLLM3 | {"no_rope_layers": layers})


def test_layers_may_differ_in_their_windows() -> None:
    mixed = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    assert windows(QWEN2 | mixed) == [None, 8]
    kinds = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    assert windows(MISTRAL | kinds) == [8, None]
    assert windows(GEMMA2 | {"num_hidden_layers": 5, "sliding_window": 8}) == [8, None, 8, None, 8]
    assert windows(GEMMA3 | {"num_hidden_layers": 7, "sliding_window": 8}) == [*[8] * 5, None, 8]
    pattern = {"num_hidden_layers": 4, "sliding_window": 8, "sliding_window_pattern": 2}
    assert windows(GEMMA3 | pattern) == [8, None, 8, None]


def test_gemma_3_has_a_rotation_of_its_own_in_layers_with_a_window() -> None:
    """Also when the window is as long as the context, and in the words of transformers 4 and 5."""
    old = {
        "rope_theta": 5e5,
        "rope_local_base_freq": 300.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    new = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        }
    }
    layers = {"num_hidden_layers": 6}
    config = from_hf_config(GEMMA3 | layers | old)
    assert config == from_hf_config(GEMMA3 | layers | new)
    ropes = [kind.rope for kind in config.layers if kind.rope is not None]
    assert [rope.theta for rope in ropes] == [*[300.0] * 5, 5e5]
    assert [rope.factor for rope in ropes] == [*[1.0] * 5, 8.0]
    defaults = [kind.rope for kind in from_hf_config(GEMMA3 | layers).layers]
    assert [rope.theta for rope in defaults if rope is not None] == [*[1e4] * 5, 1e6]
    with pytest.raises(ConfigError, match=r"sliding_attention .* has a rope_type"):
        from_hf_config(
            GEMMA3 | {"rope_parameters": {"sliding_attention": {"type": "linear", "factor": 2.0}}}
        )


def test_smollm3_rotates_three_of_four_layers_unless_it_lists_them() -> None:
    def rotated(**changes: Any) -> list[bool]:
        config = from_hf_config(SMOLLM3 | {"num_hidden_layers": 5} | changes)
        return [kind.rope is not None for kind in config.layer_kinds]

    assert rotated() == [True, True, True, False, True]
    assert rotated(no_rope_layer_interval=2) == [True, False, True, False, True]
    assert rotated(no_rope_layers=[0, 1, 1, 1, 1, 1]) == [False, True, True, True, True]
    assert from_hf_config(SMOLLM3 | {"no_rope_layers": [1, 1]}).layers == ()


def test_defaults_of_an_architecture_apply_where_the_field_is_missing_not_where_it_is_null() -> (
    None
):
    config = from_hf_config(GEMMA2)
    assert (config.attention_soft_cap, config.logits_soft_cap) == (50.0, 30.0)
    assert config.tie_word_embeddings
    assert config.head_size == 256
    assert config.attention_scale == 256**-0.5
    assert from_hf_config(GEMMA2 | {"attn_logit_softcapping": None}).attention_soft_cap is None


def test_longrope_serves_its_original_context_unless_a_longer_one_is_asked_for() -> None:
    """Its frequencies depend on the length, so one length is chosen for all requests."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "type": "longrope"}
    config = from_hf_config(PHI3 | {"max_position_embeddings": 65536, "rope_scaling": factors})
    assert config.max_position_embeddings == 65536
    assert config.for_context(None).max_position_embeddings == 4096
    assert config.for_context(100).max_position_embeddings == 100
    assert config.for_context(5000).max_position_embeddings == 5000
    assert from_hf_config(LLAMA).for_context(100) == from_hf_config(LLAMA)


def test_every_field_that_differs_from_its_default_is_named() -> None:
    plain = from_hf_config(LLAMA | {"rope_theta": 5e5})
    assert plain.non_defaults == {"rope"}
    assert from_hf_config(GEMMA2 | {"sliding_window": 8}).non_defaults >= {
        "layers",
        "norms",
        "norm_offset",
    }


def test_experts_are_read_with_the_names_of_each_architecture() -> None:
    def experts(name: str, **changes: Any) -> Any:
        return from_hf_config(LLAMA | {"architectures": [f"{name}ForCausalLM"]} | changes).experts

    mixtral = experts("Mixtral", num_local_experts=4)
    assert (mixtral.num_experts, mixtral.num_active, mixtral.intermediate_size) == (4, 2, 96)
    assert mixtral.normalizes_shares
    sizes = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
    for field in ("num_experts", "num_local_experts"):
        qwen = experts("Qwen3Moe", **sizes, **{field: 4})
        assert (qwen.num_experts, qwen.num_active, qwen.intermediate_size) == (4, 2, 24)
        assert not qwen.normalizes_shares
    assert experts("Qwen3Moe", **sizes, num_experts=4, norm_topk_prob=True).normalizes_shares
    with pytest.raises(ConfigError, match="lacks num_experts"):
        experts("Olmoe")
    for change in ({"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}):
        with pytest.raises(ConfigError, match=f"{next(iter(change))} in config.json .* supported"):
            experts("Qwen3Moe", **sizes, num_experts=4, **change)
    with pytest.raises(ConfigError, match=r"clip_qkv in config.json is 8.0"):
        experts("Olmoe", num_experts=4, num_experts_per_tok=2, clip_qkv=8.0)


@pytest.mark.parametrize(
    ("base", "field"),
    [("GEMMA2", "use_bidirectional_attention"), ("GEMMA3", "attn_logit_softcapping")],
)
def test_fields_that_change_the_computation_are_refused(base: str, field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} in config.json is True, .* not supported"):
        from_hf_config(globals()[base] | {field: True})


def test_qwen2_5_vl_is_read_as_its_text_model_from_old_and_new_files() -> None:
    named = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "vision_config": {}}
    text = {name: value for name, value in LLAMA.items() if name != "architectures"}
    flat = named | text | {"model_type": "qwen2_5_vl", "rope_scaling": SECTIONS}
    inner = text | {
        "model_type": "qwen2_5_vl_text",
        "rope_parameters": SECTIONS | {"type": None, "rope_type": "default"},
    }
    config = from_hf_config(named | {"model_type": "qwen2_5_vl", "text_config": inner})
    assert from_hf_config(flat) == config
    assert config.attention_bias and not config.attention_output_bias
    assert [kind.rope.sections for kind in config.layer_kinds if kind.rope] == (
        [(2, 3, 3)] * config.num_layers
    )
    wrong = SECTIONS | {"mrope_section": [2, 3, 4]}
    with pytest.raises(ConfigError, match="mrope_section needs 3 numbers whose sum is 8, got"):
        from_hf_config(flat | {"rope_scaling": wrong})


def test_images_in_later_layers_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="Qwen3VLForConditionalGeneration, which adds images to"):
        from_hf_config(LLAMA | {"architectures": ["Qwen3VLForConditionalGeneration"]})


@pytest.mark.parametrize("name", BY_NAME)
def test_an_absurd_value_of_any_field_is_refused_in_one_line_or_harmless(name: str) -> None:
    rope = {"rope_type": "yarn", "short_factor": [1.0], "long_factor": [1.0], "factor": 2.0}
    valid = LLAMA | EXTRA | {"architectures": [name], "model_type": BY_NAME[name].model_type}
    if BY_NAME[name].rope_sections is not None:
        valid, rope = valid | {"rope_scaling": SECTIONS}, rope | SECTIONS | {"rope_type": "yarn"}
    changes = [{field: value} for field in valid for value in ABSURD]
    changes += [{"rope_scaling": rope | {field: value}} for field in rope for value in ABSURD]
    refused = 0
    for change in changes:
        try:
            from_hf_config(valid | change)
        except ConfigError as error:
            assert str(error).isprintable()
            refused += 1
    assert len(changes) // 4 < refused < len(changes)


def windows(config: dict[str, Any]) -> list[int | None]:
    return [kind.sliding_window for kind in from_hf_config(config).layer_kinds]
