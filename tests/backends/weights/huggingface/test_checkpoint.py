"""Hugging Face directories: shards, sampling defaults, and damage of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tokenmill.backends.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.backends.weights.huggingface import multimodal
from tokenmill.backends.weights.packed import PackedWeights
from tokenmill.core.errors import ConfigError

from ..quantization.writers import CASES

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 8,
    "max_position_embeddings": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": 16,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}

TEXT_CONFIG = {name: value for name, value in CONFIG.items() if name != "architectures"} | {
    "num_key_value_heads": 2
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "Tiny-Llama"
    path.mkdir()
    write(path / "config.json", CONFIG)
    save_file({"a": torch.ones(2), "b": torch.zeros(3)}, path / "model.safetensors")
    return path


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def make_shards(path: Path) -> None:
    (path / "model.safetensors").unlink()
    save_file({"a": torch.ones(2)}, path / "one.safetensors")
    save_file({"b": torch.zeros(3)}, path / "two.safetensors")
    write_index(path, {"a": "one.safetensors", "b": "two.safetensors"})


def write_index(path: Path, weight_map: Any) -> None:
    write(path / "model.safetensors.index.json", {"weight_map": weight_map})


def check_tensors(checkpoint: Checkpoint) -> None:
    assert sorted(checkpoint.tensor_names()) == ["a", "b"]
    assert torch.equal(checkpoint.tensor("a"), torch.ones(2))
    assert torch.equal(checkpoint.tensor("b"), torch.zeros(3))


def test_reads_one_file(directory: Path) -> None:
    checkpoint = open_checkpoint(directory)
    check_tensors(checkpoint)
    assert checkpoint.path == directory
    assert checkpoint.name == "Tiny-Llama"
    assert checkpoint.dtype == torch.bfloat16
    assert checkpoint.config.hidden_size == 8


def test_reads_shards(directory: Path) -> None:
    make_shards(directory)
    check_tensors(open_checkpoint(directory))


def test_tensors_outlive_a_release_and_are_read_again_after_it(directory: Path) -> None:
    checkpoint = open_checkpoint(directory)
    before = {name: checkpoint.tensor(name) for name in checkpoint.tensor_names()}
    kept = {name: tensor.clone() for name, tensor in before.items()}
    checkpoint.release()
    for name, tensor in before.items():
        assert torch.equal(tensor, kept[name])
        assert torch.equal(checkpoint.tensor(name), kept[name])
        assert checkpoint.tensor(name).data_ptr() != tensor.data_ptr()


def test_in_the_hub_s_cache_the_model_has_its_own_name(directory: Path) -> None:
    snapshot = directory.parent / "models--HuggingFaceTB--SmolLM2" / "snapshots" / "12fd25f"
    snapshot.parent.mkdir(parents=True)
    directory.rename(snapshot)
    assert open_checkpoint(snapshot).name == "SmolLM2"


def test_end_tokens_come_from_generation_config_or_else_from_config(directory: Path) -> None:
    assert open_checkpoint(directory).eos_token_ids == (2,)
    write(directory / "generation_config.json", {"eos_token_id": [0, 7]})
    assert open_checkpoint(directory).eos_token_ids == (0, 7)
    write(directory / "config.json", CONFIG | {"eos_token_id": None})
    write(directory / "generation_config.json", {"eos_token_id": None})
    assert open_checkpoint(directory).eos_token_ids == ()


def test_sampling_defaults_are_those_that_we_know_under_our_names(directory: Path) -> None:
    assert open_checkpoint(directory).sampling_defaults == {}
    generation = {
        "do_sample": False,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": None,
        "repetition_penalty": 1.1,
        "max_new_tokens": 512,
        "num_beams": 4,
    }
    write(directory / "generation_config.json", generation)
    assert open_checkpoint(directory).sampling_defaults == {
        "temperature": 0.6,
        "top_k": 20,
        "repetition_penalty": 1.1,
        "max_tokens": 512,
    }


def test_sampling_defaults_out_of_range_are_refused(directory: Path) -> None:
    write(directory / "generation_config.json", {"top_p": 1.5})
    with pytest.raises(ConfigError, match=r"generation_config.json recommends .*top_p must be"):
        open_checkpoint(directory)


def test_a_missing_tensor_is_named(directory: Path) -> None:
    with pytest.raises(ConfigError, match="lacks the tensor c"):
        open_checkpoint(directory).tensor("c")


def make_multimodal(directory: Path, *names: str, **changes: Any) -> None:
    """Put the model into a multimodal one, with tensors of these names."""
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": TEXT_CONFIG}
    write(directory / "config.json", whole | changes)
    save_file(
        {name: torch.full((2,), float(i)) for i, name in enumerate(names)},
        directory / "model.safetensors",
    )


OLD_NAMES = (
    "language_model.model.norm.weight",
    "language_model.lm_head.weight",
    "vision_tower.norm.weight",
    "multi_modal_projector.norm.weight",
)
NEW_NAMES = (
    "model.language_model.norm.weight",
    "lm_head.weight",
    "model.vision_tower.norm.weight",
    "model.multi_modal_projector.norm.weight",
)


@pytest.mark.parametrize("names", [OLD_NAMES, NEW_NAMES])
def test_of_a_multimodal_model_only_the_text_model_s_tensors_are_there(
    directory: Path,
    names: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If its tower is computed nowhere, the log says so."""
    monkeypatch.setattr(multimodal, "TOWERS", ())
    make_multimodal(directory, *names)
    with caplog.at_level("INFO", logger="tokenmill.model"):
        checkpoint = open_checkpoint(directory)
    assert [(r.msg, vars(r)["ignored_tensors"]) for r in caplog.records] == [
        ("only_text_model_used", 2)
    ]
    assert sorted(checkpoint.tensor_names()) == ["lm_head.weight", "model.norm.weight"]
    for _ in range(2):
        assert torch.equal(checkpoint.tensor("model.norm.weight"), torch.zeros(2))
        assert torch.equal(checkpoint.tensor("lm_head.weight"), torch.ones(2))
        checkpoint.release()
    assert checkpoint.stored("lm_head.weight").shape == (2,)


def test_a_tensor_under_both_names_of_multimodal_models_is_refused(directory: Path) -> None:
    make_multimodal(directory, *OLD_NAMES, *NEW_NAMES)
    with pytest.raises(ConfigError, match=r"twice: as .*language_model"):
        open_checkpoint(directory)


def test_what_is_said_about_the_whole_multimodal_model_counts_before_its_text_config(
    directory: Path,
) -> None:
    make_multimodal(directory, *OLD_NAMES)
    checkpoint = open_checkpoint(directory)
    assert (checkpoint.dtype, checkpoint.eos_token_ids) == (torch.bfloat16, (2,))
    make_multimodal(directory, *OLD_NAMES, dtype="float16", eos_token_id=[3, 4])
    checkpoint = open_checkpoint(directory)
    assert (checkpoint.dtype, checkpoint.eos_token_ids) == (torch.float16, (3, 4))


@pytest.mark.parametrize("prefix", ["language_model.model", "model.language_model"])
def test_packed_matrices_of_a_multimodal_model_stay_packed(directory: Path, prefix: str) -> None:
    case = CASES["compressed-tensors, int4"]
    parts, values = case.write(torch.randn(64, 96))
    make_multimodal(directory, quantization_config=case.config)
    stored = {f"{prefix}.up_proj{ending}": part for ending, part in parts.items()}
    stored |= {f"vision_tower.up_proj{ending}": part.clone() for ending, part in parts.items()}
    save_file(stored, directory / "model.safetensors")
    checkpoint = open_checkpoint(directory)
    assert checkpoint.tensor_names() == ("model.up_proj.weight",)
    matrix = checkpoint.matrix("model.up_proj.weight")
    assert isinstance(matrix, PackedWeights)
    assert torch.equal(matrix.dequantize(), values)
    assert checkpoint.quantization == "compressed-tensors"


def damage(directory: Path, kind: str) -> None:
    weights = directory / "model.safetensors"
    if kind == "no config":
        (directory / "config.json").unlink()
    elif kind == "gguf files":
        (directory / "config.json").unlink()
        (directory / "model.Q4_0.gguf").touch()
    elif kind == "config that is no JSON":
        (directory / "config.json").write_text("{")
    elif kind == "config that is no object":
        write(directory / "config.json", [1])
    elif kind == "no weights":
        weights.unlink()
    elif kind == "pickles":
        weights.rename(directory / "pytorch_model.bin")
    elif kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:-3])
    elif kind == "garbage":
        weights.write_bytes(b"\xff" * 100)
    elif kind == "missing shard":
        make_shards(directory)
        (directory / "two.safetensors").unlink()
    elif kind == "shard elsewhere":
        write_index(directory, {"a": "../Tiny-Llama/model.safetensors"})
    else:
        write_index(directory, ["a"])


DAMAGES = {
    "no config": r"no model in .*Tiny-Llama: it has no config.json and no .gguf file\. Supported:",
    "gguf files": r"Name one of its GGUF files: model.Q4_0.gguf",
    "config that is no JSON": r"config.json cannot be read",
    "config that is no object": r"config.json must hold a JSON object",
    "no weights": r"looked for model.safetensors and model.safetensors.index.json$",
    "pickles": r"pickles, which can run any program.*convert them to safetensors",
    "truncated": r"model.safetensors cannot be read as safetensors",
    "garbage": r"model.safetensors cannot be read as safetensors",
    "missing shard": r"two.safetensors is missing: the model's download is incomplete",
    "shard elsewhere": r"not a safetensors file in its directory",
    "index without map": r"must have a weight_map",
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_named(kind: str, directory: Path) -> None:
    damage(directory, kind)
    with pytest.raises(ConfigError, match=DAMAGES[kind]):
        open_checkpoint(directory)
