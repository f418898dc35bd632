"""GGUF metadata: what is understood, and that unknown keys are refused."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import Any

import pytest

from tokenmill.backends.weights.config.architectures import BY_GGUF_NAME, BY_NAME
from tokenmill.backends.weights.config.model_config import ExpertsConfig
from tokenmill.backends.weights.config.rope_config import RopeScaling
from tokenmill.backends.weights.gguf.config import from_gguf_metadata
from tokenmill.core.errors import ConfigError

from ..hostile_directories import ABSURD

LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.file_type": 3,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.block_count": 2,
    "llama.context_length": 2048,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.rope.dimension_count": 16,
    "llama.rope.freq_base": 5e5,
    "llama.vocab_size": 100,
    "tokenizer.ggml.model": "gpt2",
}
SHAPES = {"token_embd.weight": (100, 64), "output.weight": (100, 64)}
QWEN3 = {k.replace("llama", "qwen3"): v for k, v in LLAMA.items()} | {
    "general.architecture": "qwen3"
}


def read(**changes: Any) -> Any:
    metadata = LLAMA | {f"llama.{k}": v for k, v in changes.items()}
    return from_gguf_metadata(metadata, tensor_shapes=SHAPES)


def test_reads_sizes_and_rope() -> None:
    config = read()
    assert config.architecture == "LlamaForCausalLM"
    assert (config.num_heads, config.num_kv_heads, config.head_size) == (4, 2, 16)
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (2, 64, 96)
    assert (config.vocab_size, config.max_position_embeddings) == (100, 2048)
    assert (config.rope.theta, config.rope.scaling) == (5e5, RopeScaling.NONE)
    assert not config.tie_word_embeddings


def test_what_metadata_leaves_out_is_seen_from_the_tensors() -> None:
    names = ("blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_up.bias")
    shapes = {"token_embd.weight": (100, 64)} | {name: (64,) for name in names}
    config = from_gguf_metadata(LLAMA, tensor_shapes=shapes)
    assert config.tie_word_embeddings
    assert config.attention_bias
    assert config.attention_output_bias
    assert config.mlp_bias


def test_reads_rope_scaling() -> None:
    yarn = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 2048,
    }
    rope = read(**yarn).rope
    assert (rope.scaling, rope.factor) == (RopeScaling.YARN, 4.0)
    assert read(**yarn).max_position_embeddings == 8192
    linear = read(**{"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}).rope
    assert (linear.scaling, linear.factor) == (RopeScaling.LINEAR, 2.0)


def test_takes_the_frequency_divisors_of_llama3() -> None:
    config = from_gguf_metadata(
        LLAMA, tensor_shapes=SHAPES, divisors={"rope_freqs.weight": (1.0,) * 8}
    )
    assert config.rope.frequency_divisors == (1.0,) * 8


def test_qwen3_has_norms_on_q_and_k_and_may_have_its_own_head_size() -> None:
    lengths = {"attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 32}
    metadata = QWEN3 | {f"qwen3.{k}": v for k, v in lengths.items()}
    config = from_gguf_metadata(metadata, tensor_shapes=SHAPES)
    assert config.features.qk_norm
    assert config.head_size == 32


def test_a_llama_s_window_is_for_all_layers() -> None:
    assert read(**{"attention.sliding_window": 100}).sliding_window == 100
    assert read(**{"attention.sliding_window": 4096}).sliding_window is None


def test_a_window_counts_in_the_context_that_yarn_stretches() -> None:
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    stretched = read(**yarn, **{"attention.sliding_window": 2048})
    assert (stretched.max_position_embeddings, stretched.sliding_window) == (8192, 2048)


def test_keys_that_switch_nothing_on_are_fine() -> None:
    assert read(expert_count=0, expert_used_count=0, **{"attention.causal": True}) == read()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "experts of an unknown number": ({"expert_count": 8}, "lacks expert_used_count"),
    "shared experts": ({"expert_shared_count": 1}, "expert_shared_count = 1 in llama"),
    "soft cap": ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    "logit scale": ({"logit_scale": 0.1}, "logit_scale = 0.1"),
    "unknown key": ({"new.thing": [1]}, r"new.thing = \[1\]"),
    "partial rotary": ({"rope.dimension_count": 8}, "must be the head size 16, got 8"),
    "value length": ({"attention.value_length": 8}, "must be the head size 16, got 8"),
    "heads per layer": ({"attention.head_count": [4, 4]}, "must be an integer"),
    "rope scaling": ({"rope.scaling.type": "axial"}, "axial.*supported: none"),
    "longrope without factors": ({"rope.scaling.type": "longrope"}, "need 8 numbers in short_fact"),
    "missing": ({"block_count": None}, "lacks block_count"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_what_it_would_compute_wrongly(case: str) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        read(**changes)


def test_refuses_windows_of_architectures_in_which_they_alternate() -> None:
    with pytest.raises(ConfigError, match=r"attention\.sliding_window = 8"):
        from_gguf_metadata(QWEN3 | {"qwen3.attention.sliding_window": 8}, tensor_shapes=SHAPES)


def test_gemma_files_leave_out_what_llama_cpp_knows() -> None:
    """The pattern of the windows, the soft caps, the scale of 27B, and the local theta."""
    gemma2 = read_as("gemma2", **{"attention.sliding_window": 64})
    assert [kind.sliding_window for kind in gemma2.layer_kinds] == [64, None]
    assert (gemma2.attention_soft_cap, gemma2.logits_soft_cap) == (50.0, 30.0)
    assert gemma2.attention_scale == 16**-0.5
    assert gemma2.hidden_act == "gelu_pytorch_tanh"
    assert gemma2.features == BY_NAME["Gemma2ForCausalLM"].features
    assert (
        read_as(
            "gemma2",
            block_count=46,
            **{"attention.key_length": 32},
            **{"attention.value_length": 32, "rope.dimension_count": 32},
        ).attention_scale
        == 16**-0.5
    )
    gemma3 = read_as("gemma3", block_count=6, **{"attention.sliding_window": 64})
    assert [kind.sliding_window for kind in gemma3.layers] == [*[64] * 5, None]
    assert [kind.rope.theta for kind in gemma3.layers] == [*[1e4] * 5, 5e5]
    listed = {"attention.sliding_window": 64, "attention.sliding_window_pattern": [False, True]}
    assert [kind.sliding_window for kind in read_as("gemma3", **listed).layers] == [None, 64]
    stated = {"attention.sliding_window": 64, "attention.sliding_window_pattern": 2}
    assert [kind.sliding_window for kind in read_as("gemma3", **stated).layers] == [64, None]
    with pytest.raises(ConfigError, match=r"sliding_window_pattern .* must have 2 elements, got 1"):
        read_as("gemma3", **listed | {"attention.sliding_window_pattern": [True]})


def test_phi3_files_may_rotate_a_part_of_each_head_and_have_longrope_without_saying_so() -> None:
    config = read_as(
        "phi3",
        {"rope_factors_long.weight": (2.0,) * 4, "rope_factors_short.weight": (1.5,) * 4},
        **{
            "rope.dimension_count": 8,
            "rope.scaling.original_context_length": 512,
            "rope.scaling.attn_factor": 1.2,
            "attention.sliding_window": 0,
        },
    )
    assert config.rotary_size == 8
    assert config.sliding_window is None
    assert config.rope.scaling is RopeScaling.LONGROPE
    assert (config.rope.short_factors, config.rope.long_factors) == ((1.5,) * 4, (2.0,) * 4)
    assert (config.rope.attention_factor, config.rope.factor) == (1.2, 4.0)
    assert config.for_context(None).max_position_embeddings == 512


def test_every_fourth_layer_of_smollm3_is_not_rotated() -> None:
    kinds = read_as("smollm3", block_count=5).layers
    assert [kind.rope is not None for kind in kinds] == [True, True, True, False, True]


def test_a_llama_with_experts_is_a_mixtral() -> None:
    config = read(expert_count=8, expert_used_count=2)
    assert config.architecture == "MixtralForCausalLM"
    assert config.experts == ExpertsConfig(
        num_experts=8, num_active=2, intermediate_size=96, normalizes_shares=True
    )
    assert read(expert_count=0, expert_used_count=0).experts is None
    with pytest.raises(ConfigError, match="2 of 1 experts per token are not possible"):
        read(expert_count=1, expert_used_count=2)


def test_experts_may_have_a_size_of_their_own() -> None:
    counts = {"expert_count": 8, "expert_used_count": 2}
    qwen = read_as("qwen3moe", **counts, expert_feed_forward_length=24).experts
    assert (qwen.intermediate_size, qwen.normalizes_shares) == (24, True)
    olmoe = read_as("olmoe", **counts)
    assert (olmoe.experts.intermediate_size, olmoe.experts.normalizes_shares) == (96, False)
    assert olmoe.features.whole_qk_norm


def accepted(architecture: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values without those that the architecture refuses."""
    found = {k: v for k, v in values.items() if k in ("expert_count", "expert_used_count")}
    for key, value in values.items():
        with suppress(ConfigError):
            read_as(architecture, **found | {key: value})
            found[key] = value
    return found


def read_as(
    architecture: str, divisors: dict[str, tuple[float, ...]] | None = None, **changes: Any
) -> Any:
    own = {k.replace("llama.", f"{architecture}."): v for k, v in LLAMA.items()}
    changed = {f"{architecture}.{k}": v for k, v in changes.items()}
    metadata = own | changed | {"general.architecture": architecture}
    return from_gguf_metadata(metadata, tensor_shapes=SHAPES, divisors=divisors)


@pytest.mark.parametrize("architecture", BY_GGUF_NAME)
def test_an_absurd_value_of_any_key_is_refused_in_one_line_or_harmless(architecture: str) -> None:
    valid = {k.removeprefix("llama."): v for k, v in LLAMA.items() if k.startswith("llama.")} | {
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": 2,
        "attn_logit_softcapping": 50.0,
        "expert_feed_forward_length": 24,
        "final_logit_softcapping": 30.0,
        "rope.freq_base_swa": 1e4,
        "rope.scaling.attn_factor": 1.0,
        "rope.scaling.factor": 2.0,
        "rope.scaling.original_context_length": 512,
        "rope.scaling.type": "yarn",
    }
    if BY_GGUF_NAME[architecture].experts is not None:
        valid |= {"expert_count": 4, "expert_used_count": 2}
    known = accepted(architecture, valid)
    refused = 0
    for key, value in product(valid, ABSURD):
        try:
            read_as(architecture, **known | {key: value})
        except ConfigError as error:
            assert str(error).isprintable()
            refused += 1
    assert refused > len(valid) * len(ABSURD) // 4


def test_names_an_architecture_that_is_not_supported() -> None:
    metadata = LLAMA | {"general.architecture": "mamba"}
    with pytest.raises(ConfigError, match=r"'mamba', which is not supported\. --model-impl"):
        from_gguf_metadata(metadata, tensor_shapes=SHAPES)


def test_needs_the_embedding() -> None:
    with pytest.raises(ConfigError, match=r"lacks the tensor token_embd\.weight"):
        from_gguf_metadata(LLAMA, tensor_shapes={})
