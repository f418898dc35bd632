"""What is written is read back as it was, for every architecture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.distill.pruned import PrunedCheckpoint
from tokenmill.backends.distill.saving import save_draft, to_hf_config
from tokenmill.backends.distill.student import Student
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.text.tokenizer import HFTokenizer
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.backends.weights.config.features import Features
from tokenmill.backends.weights.config.model_config import ModelConfig
from tokenmill.backends.weights.config.rope_config import RopeConfig, RopeScaling
from tokenmill.backends.weights.draft_vocabulary import read_draft_vocabulary
from tokenmill.backends.weights.huggingface.config import from_hf_config
from tokenmill.core.errors import ConfigError

from ..tiny_checkpoints import TARGET, make_tokenizer

CONFIGS = {
    "llama": replace(TARGET, attention_bias=True, attention_output_bias=True, mlp_bias=True),
    "tied": replace(TARGET, tie_word_embeddings=True),
    "qwen2": replace(TARGET, architecture="Qwen2ForCausalLM", attention_bias=True),
    "qwen3": replace(TARGET, architecture="Qwen3ForCausalLM", features=Features(qk_norm=True)),
    "window": replace(TARGET, architecture="MistralForCausalLM", sliding_window=64),
    "window of qwen": replace(
        TARGET, architecture="Qwen3ForCausalLM", features=Features(qk_norm=True), sliding_window=64
    ),
    "llama3": replace(
        TARGET,
        rope=RopeConfig(
            theta=5e5,
            scaling=RopeScaling.LLAMA3,
            factor=8.0,
            original_max_position_embeddings=64,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        ),
    ),
    "yarn": replace(
        TARGET,
        rope=RopeConfig(scaling=RopeScaling.YARN, factor=2.0, original_max_position_embeddings=128),
    ),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_configuration_is_read_back_as_it_was(config: ModelConfig) -> None:
    found = from_hf_config(to_hf_config(config, (1, 2)))
    original = config.rope.original_max_position_embeddings or config.max_position_embeddings
    rope = replace(config.rope, original_max_position_embeddings=original)
    assert found == replace(config, rope=rope)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_weights_are_those_of_the_layers_that_were_kept(
    config: ModelConfig, tmp_path: Path
) -> None:
    target = random_checkpoint(config, 3)
    token_ids = torch.tensor([1, 5, 6, 100])
    pruned = PrunedCheckpoint(target, [0, 2], token_ids)
    tokenizer = HFTokenizer(make_tokenizer(config.vocab_size))
    save_draft(tmp_path, Student(pruned, torch.float32), token_ids, tokenizer, ())
    saved = open_checkpoint(tmp_path)
    chosen = read_draft_vocabulary(saved)
    assert chosen is not None and chosen.tolist() == token_ids.tolist()
    assert set(saved.tensor_names()) == set(pruned.tensor_names())
    for name in saved.tensor_names():
        expected = pruned.tensor(name)
        wanted = expected.bfloat16() if expected.is_floating_point() else expected
        assert torch.equal(saved.tensor(name), wanted), name
    second = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(pruned.tensor(second), target.tensor(second.replace("1", "2")))
    assert load_tokenizer(tmp_path).token_bytes(7) == tokenizer.token_bytes(7)


def test_frequencies_that_config_json_cannot_say_are_refused() -> None:
    rope = RopeConfig(frequency_divisors=(1.0,) * 8)
    with pytest.raises(ConfigError, match="make the draft from the model's Hugging Face directory"):
        to_hf_config(replace(TARGET, rope=rope), ())


def test_a_layer_that_the_target_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="has layers 0 to 2, not 3"):
        PrunedCheckpoint(random_checkpoint(TARGET, 0), [0, 3], None)


def test_logits_for_tokens_in_disorder_are_refused() -> None:
    disordered = PrunedCheckpoint(random_checkpoint(TARGET, 0), [0], torch.tensor([4, 2]))
    with pytest.raises(ConfigError, match="must give ascending token ids below 192"):
        read_draft_vocabulary(disordered)
