"""--hf-overrides: how fields are merged, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny_checkpoints import TARGET
from tests.backends.weights.gguf_writing import write_gguf
from tokenmill.backends.models.native.implementation import NativeModels
from tokenmill.backends.models.opening import describe, open_as_stored
from tokenmill.backends.weights.huggingface.config import from_hf_config
from tokenmill.backends.weights.huggingface.overrides import overridden
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "max_position_embeddings": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 16,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
NEW = LLAMA | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}
"""As transformers 5 writes it."""
OLD = LLAMA | {"rope_scaling": LLAMA3, "rope_theta": 5e5}
"""As transformers 4 writes it."""
MULTIMODAL = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": LLAMA
    | {"architectures": None, "model_type": "gemma3_text", "num_key_value_heads": 1, "head_dim": 4},
}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize("fields", [NEW, OLD], ids=["transformers 5", "transformers 4"])
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_a_rotation_is_overridden_by_both_of_its_names(fields: dict[str, Any], name: str) -> None:
    rope = from_hf_config(overridden(fields, {name: YARN}, "c")).layer_kinds[0].rope
    same = from_hf_config(LLAMA | {"rope_theta": 5e5, "rope_scaling": YARN})
    assert rope == same.layer_kinds[0].rope
    less = from_hf_config(overridden(fields, {name: {"factor": 4.0}}, "c"))
    part = LLAMA3 | {"factor": 4.0}
    assert less == from_hf_config(LLAMA | {"rope_theta": 5e5, "rope_scaling": part})
    none = from_hf_config(overridden(fields, {name: None, "rope_theta": 7}, "c"))
    assert none == from_hf_config(LLAMA | {"rope_theta": 7})


def test_objects_are_merged_and_the_architecture_follows() -> None:
    changed = overridden(MULTIMODAL, {"text_config": {"num_hidden_layers": 1}}, "c")
    assert from_hf_config(changed).num_layers == 1
    changes = {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 1, "vocab_size": 9}
    other = overridden(LLAMA, changes, "c")
    assert (from_hf_config(other).attention_bias, other["vocab_size"]) == (True, 9)
    assert LLAMA["vocab_size"] == 16
    assert overridden(LLAMA, {"eos_token_id": 3}, "c")["eos_token_id"] == 3


@pytest.mark.parametrize(
    ("fields", "overrides", "words"),
    [
        (LLAMA, {"rms_norm_ep": 1}, "'rms_norm_ep', which c lacks and the engine does not read. "
                                    "Did you mean 'rms_norm_eps'?"),
        (MULTIMODAL, {"vocab_size": 9}, 'belongs in text_config: {"text_config": {"vocab_size"'),
        (MULTIMODAL, {"text_config": {"vocab_siz": 9}}, "text_config in c lacks"),
        (NEW, {"factor": 4}, "belongs in rope_parameters"),
        (LLAMA, {"quantization_config": {}}, "must not set quantization_config: it describes"),
        (MULTIMODAL, {"text_config": {"auto_map": {}}}, "is never run"),
    ],
)  # fmt: skip
def test_an_override_without_effect_is_refused(
    fields: dict[str, Any], overrides: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        overridden(fields, overrides, "c")
    assert words in str(refused.value)


def test_a_wrong_value_is_refused_with_the_flag_and_gguf_files_have_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(ConfigError, match=r"hidden_size .* an integer.*\(with --hf-overrides\)"):
        open_as_stored(tmp_path, NativeModels, overrides={"hidden_size": "x"})
    file = tmp_path / "m.gguf"
    write_gguf(file, random_checkpoint(TARGET, seed=0))
    with pytest.raises(ConfigError, match=r"m\.gguf does not have"):
        describe(file, overrides={"hidden_size": 1})
    assert describe(file).gguf is not None


@pytest.mark.parametrize("given", ["[1]", "{", 3, {"a": object()}, lambda config: config])
def test_what_is_no_object_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="--hf-overrides"):
        EngineConfig(hf_overrides=given)


def test_no_override_is_none() -> None:
    assert EngineConfig(hf_overrides={}).hf_overrides is None
