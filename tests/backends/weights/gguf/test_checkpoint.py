"""GGUF files as checkpoints: names, layout and dequantization, against their sources."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.backends.weights.config.features import Features
from tokenmill.backends.weights.config.model_config import ModelConfig
from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks
from tokenmill.backends.weights.packed import PackedWeights
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

from ...models.native.test_loader import CONFIG
from ..gguf_writing import write_gguf

CONFIGS: dict[str, ModelConfig] = {
    "llama": replace(CONFIG, rope=replace(CONFIG.rope, theta=50000.0)),
    "llama with biases": replace(
        CONFIG, attention_bias=True, attention_output_bias=True, mlp_bias=True
    ),
    "qwen2": replace(
        CONFIG, architecture="Qwen2ForCausalLM", attention_bias=True, tie_word_embeddings=False
    ),
    "qwen3": replace(
        CONFIG, architecture="Qwen3ForCausalLM", head_size=16, features=Features(qk_norm=True)
    ),
}
BIG = replace(CONFIG, hidden_size=256, head_size=64, intermediate_size=256)


@pytest.mark.parametrize("case", CONFIGS)
def test_gives_back_the_tensors_and_the_configuration_that_were_written(
    case: str, tmp_path: Path
) -> None:
    source = random_checkpoint(CONFIGS[case], 0)
    write_gguf(tmp_path / "m.gguf", source, architecture=case.split()[0])
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    rope = replace(source.config.rope, original_max_position_embeddings=32)
    actual = replace(checkpoint.config, rms_norm_eps=source.config.rms_norm_eps)
    assert actual == replace(source.config, rope=rope)
    assert checkpoint.config.rms_norm_eps == pytest.approx(source.config.rms_norm_eps)
    assert sorted(checkpoint.tensor_names()) == sorted(source.tensor_names())
    for name in source.tensor_names():
        assert torch.equal(checkpoint.tensor(name), source.tensor(name)), name


@pytest.mark.parametrize(
    "kind",
    [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.TQ2_0],
)
def test_dequantizes(kind: Kind, tmp_path: Path) -> None:
    """Values are those that the gguf package gives for the same bytes."""
    source = random_checkpoint(BIG, 0)
    write_gguf(tmp_path / "m.gguf", source, kind=kind)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"):
        original = source.tensor(name).numpy()
        expected = gguf.dequantize(gguf.quantize(original, kind), kind)
        assert torch.equal(checkpoint.tensor(name), torch.from_numpy(expected))
    halves = {Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}
    assert checkpoint.dtype == halves.get(kind) or GGUFBlocks(kind)


def test_a_quantized_matrix_is_read_as_it_is_stored(tmp_path: Path) -> None:
    source = random_checkpoint(BIG, 0)
    write_gguf(tmp_path / "m.gguf", source, kind=Kind.Q4_1)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    name = "model.layers.0.self_attn.k_proj.weight"
    matrix = checkpoint.matrix(name)
    assert isinstance(matrix, PackedWeights)
    assert (matrix.format.name, matrix.shape) == ("Q4_1", (128, 256))
    assert matrix.num_bytes == 128 * 256 // 32 * 20
    assert torch.equal(matrix.dequantize(), checkpoint.tensor(name))
    assert isinstance(checkpoint.matrix("model.norm.weight"), torch.Tensor)
    with pytest.raises(ConfigError, match="lacks the tensor nothing"):
        checkpoint.matrix("nothing")


def test_types_that_cannot_be_dequantized_are_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    source = random_checkpoint(CONFIG, 0)
    write_gguf(tmp_path / "m.gguf", source, tensors={})
    content = bytearray((tmp_path / "m.gguf").read_bytes())
    at = content.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    content[at] = Kind.I32.value
    (tmp_path / "m.gguf").write_bytes(content)
    writer.close()
    with pytest.raises(ConfigError, match=r"model.norm.weight of .* type I32 is not"):
        open_checkpoint(tmp_path / "m.gguf").tensor("model.norm.weight")


def test_llama3_s_frequency_divisors_reach_the_configuration(tmp_path: Path) -> None:
    divisors = torch.tensor([1.0, 1.0, 2.0, 8.0])
    path = tmp_path / "m.gguf"
    write_gguf(path, random_checkpoint(CONFIG, 0), tensors={"rope_freqs.weight": divisors})
    checkpoint = open_checkpoint(path)
    assert checkpoint.config.rope.frequency_divisors == (1.0, 1.0, 2.0, 8.0)
    assert not any("rope_freqs" in name for name in checkpoint.tensor_names())


def test_unknown_tensors_are_refused_when_the_model_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    extra = {"blk.0.ffn_gate_inp.weight": torch.ones(4, 32)}
    write_gguf(path, random_checkpoint(CONFIG, 0), tensors=extra)
    with pytest.raises(ConfigError, match=r"does not use.*model.layers.0.mlp.gate.weight"):
        load_decoder(
            open_checkpoint(path),
            dtype=torch.float32,
            device=torch.device("cpu"),
            progress=no_progress,
        )


def test_metadata_gives_name_end_tokens_and_sampling_defaults(tmp_path: Path) -> None:
    values = {
        "tokenizer.ggml.eot_token_id": 1,
        "tokenizer.ggml.eom_token_id": 2,
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": 1.25,
    }
    write_gguf(tmp_path / "My-Model.Q4_K_M.gguf", random_checkpoint(CONFIG, 0), values=values)
    checkpoint = open_checkpoint(tmp_path / "My-Model.Q4_K_M.gguf")
    assert checkpoint.name == "My-Model"
    assert checkpoint.eos_token_ids == (2, 1)
    assert checkpoint.sampling_defaults == {
        "temperature": 0.5,
        "top_k": 20,
        "repetition_penalty": 1.25,
    }


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("Llama-3.2-1B-Instruct-Q8_0", "Llama-3.2-1B-Instruct"),
        ("qwen2.5-0.5b-instruct-fp16", "qwen2.5-0.5b-instruct-fp16"),
        ("Qwen3-0.6B-BF16", "Qwen3-0.6B"),
        ("model.IQ4_XS", "model"),
        ("Qwen3-Q", "Qwen3-Q"),
    ],
)
def test_the_name_is_the_file_s_without_the_quantization(
    stem: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / f"{stem}.gguf"
    write_gguf(path, random_checkpoint(CONFIG, 0))
    assert open_checkpoint(path).name == name


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", random_checkpoint(CONFIG, 0))
    with pytest.raises(ConfigError, match=r"lacks the tensor lm_head\.weight"):
        open_checkpoint(tmp_path / "m.gguf").tensor("lm_head.weight")


def test_tensors_outlive_a_release_and_are_read_again_after_it(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", random_checkpoint(BIG, 0), kind=Kind.Q8_0)
    checkpoint, name = open_checkpoint(tmp_path / "m.gguf"), "model.layers.0.mlp.up_proj.weight"
    before = checkpoint.matrix(name)
    assert isinstance(before, PackedWeights)
    kept = before.planes[0].clone()
    checkpoint.release()
    after = checkpoint.matrix(name)
    assert isinstance(after, PackedWeights)
    assert torch.equal(before.planes[0], kept)
    assert torch.equal(after.planes[0], kept)
    assert after.planes[0].data_ptr() != before.planes[0].data_ptr()
