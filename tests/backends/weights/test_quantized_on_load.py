"""A checkpoint in floating point becomes small while it is loaded (--quantize-on-load)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from tests.backends.chosen import backends_with
from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny import CONFIG as TINY
from tests.backends.tiny import CPU
from tests.backends.weights.gguf_writing import write_gguf
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.distill.saving import to_hf_config
from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.models.native.implementation import NativeModels
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.models.opening import choose_model_impl, open_model
from tokenmill.backends.running.parts.model_parts import Backends
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.backends.weights.formats.quantizing import QUANTIZE_ON_LOAD
from tokenmill.backends.weights.packed import PackedWeights
from tokenmill.backends.weights.quantized_on_load import QuantizedOnLoad
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import no_progress

CONFIG = replace(
    TINY,
    hidden_size=256,
    intermediate_size=320,
    head_size=32,
    num_heads=8,
    vocab_size=256,
    tie_word_embeddings=True,
)
CHECKPOINT = random_checkpoint(CONFIG, 3)
UP, DOWN = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("up", "down"))


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [("q8_0", "Q8_0", "Q8_0"), ("q4_0", "Q4_0", "Q4_0"), ("q4_k", "Q4_K", "Q4_0")],
)
def test_matrices_get_the_format_that_their_rows_allow(name: str, up: str, down: str) -> None:
    checkpoint = QuantizedOnLoad(CHECKPOINT, name)
    assert "lm_head.weight" in checkpoint.tensor_names()
    for matrix_name, expected in ((UP, up), (DOWN, down), ("lm_head.weight", "Q8_0")):
        matrix = checkpoint.matrix(matrix_name)
        assert isinstance(matrix, PackedWeights)
        assert matrix.format.name == expected
        described = checkpoint.stored(matrix_name)
        assert (described.format, described.num_bytes) == (matrix.format, matrix.num_bytes)
        original = checkpoint.tensor(matrix_name).float()
        error = (matrix.dequantize() - original).norm() / original.norm()
        assert error < (0.01 if expected == "Q8_0" else 0.12)


def test_other_tensors_stay_as_they_are() -> None:
    checkpoint = QuantizedOnLoad(CHECKPOINT, "q8_0")
    for name in ("model.norm.weight", "model.layers.0.input_layernorm.weight"):
        assert torch.equal(checkpoint.tensor(name), CHECKPOINT.tensor(name))
        assert isinstance(checkpoint.matrix(name), torch.Tensor)
    embedding = CHECKPOINT.tensor("model.embed_tokens.weight")
    for read in (checkpoint.tensor, checkpoint.matrix):
        assert torch.equal(torch.as_tensor(read("model.embed_tokens.weight")), embedding)
    assert torch.equal(checkpoint.tensor("lm_head.weight"), embedding)


def test_rows_that_hold_no_whole_blocks_stay_as_they_are() -> None:
    narrow = random_checkpoint(replace(CONFIG, intermediate_size=48), 3)
    assert isinstance(QuantizedOnLoad(narrow, "q8_0").matrix(DOWN), torch.Tensor)


@pytest.fixture
def gpt_oss(tmp_path: Path) -> Path:
    """A checkpoint in which one tensor has all experts of a layer, [experts, in, out]."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.GptOssConfig(
        **sizes, **heads, num_local_experts=3, num_experts_per_tok=2, vocab_size=50
    )
    transformers.GptOssForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def test_all_experts_in_one_tensor_are_quantized_and_their_biases_are_not(gpt_oss: Path) -> None:
    inner = open_checkpoint(gpt_oss)
    checkpoint = QuantizedOnLoad(inner, "q8_0")
    for name, shape in (("gate_up", (3 * 192, 64)), ("down", (3 * 64, 96))):
        name = f"model.layers.0.mlp.experts.{name}_proj"
        matrix, described = checkpoint.matrix(name), checkpoint.stored(name)
        assert isinstance(matrix, PackedWeights)
        assert (matrix.shape, matrix.format.name) == (shape, "Q8_0")
        assert (described.shape, described.format) == (matrix.shape, matrix.format)
        assert described.num_bytes == matrix.num_bytes
        original = inner.tensor(name).float().transpose(1, 2).reshape(shape)
        assert (matrix.dequantize() - original).norm() < 0.01 * original.norm()
        assert checkpoint.stored(f"{name}_bias") == inner.stored(f"{name}_bias")


def test_a_model_with_all_experts_in_one_tensor_can_be_loaded(gpt_oss: Path) -> None:
    decoder = load_decoder(
        QuantizedOnLoad(open_checkpoint(gpt_oss), "q8_0"),
        dtype=torch.float32,
        device=torch.device("cpu"),
        progress=no_progress,
    )
    assert decoder.config.experts is not None


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.full((256, 256), torch.nan), f"{UP} of .*not finite cannot be quantized to Q8_0"),
        (torch.empty(320, 0), rf"{UP} of .* has shape \[320, 0\]"),
    ],
    ids=["not finite", "empty"],
)
def test_a_damaged_matrix_is_refused_by_name(
    matrix: torch.Tensor, message: str, tmp_path: Path
) -> None:
    names = CHECKPOINT.tensor_names()
    tensors = {name: CHECKPOINT.tensor(name) for name in names} | {UP: matrix}
    config = to_hf_config(CONFIG, ()) | {"dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = QuantizedOnLoad(open_checkpoint(tmp_path), "q8_0")
    assert len([checkpoint.stored(name) for name in names]) == len(names)
    with pytest.raises(ConfigError, match=message):
        load_decoder(checkpoint, dtype=torch.float32, device=CPU, progress=no_progress)


def test_a_quantized_file_is_not_quantized_again_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from gguf import GGMLQuantizationType as Kind

    write_gguf(tmp_path / "m.gguf", CHECKPOINT, kind=Kind.Q5_0)
    host = PluginHost.load(EngineConfig())
    config = EngineConfig(quantize_on_load="q8_0")
    checkpoint, _ = open_model(tmp_path / "m.gguf", choose_model_impl(host), config)
    matrix = checkpoint.matrix(UP)
    assert isinstance(matrix, PackedWeights)
    assert matrix.format.name == "Q5_0"
    assert [line.getMessage() for line in caplog.records] == ["quantize_on_load_has_no_effect"]


def test_quantizing_is_refused_where_it_would_be_undone() -> None:
    config = EngineConfig(device="cpu", quantize_on_load="q8_0")
    with pytest.raises(ConfigError, match="has no effect here: linear backend 'torch' would"):
        ModelExecutor.from_checkpoint(
            QuantizedOnLoad(CHECKPOINT, "q8_0"),
            config,
            Backends(TorchAttention, TorchLinear, NativeModels),
            no_progress,
        )


def test_a_precision_and_quantizing_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="--quantize-on-load and --dtype contradict each other"):
        EngineConfig(quantize_on_load="q4_0", dtype="bfloat16")


def test_unknown_kinds_and_other_quantizations_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", CHECKPOINT)
    impl = choose_model_impl(PluginHost.load(EngineConfig()))
    known = ", ".join(QUANTIZE_ON_LOAD)
    with pytest.raises(ConfigError, match=f"--quantize-on-load must be one of {known}"):
        open_model(tmp_path / "m.gguf", impl, EngineConfig(quantize_on_load="q2_k"))
    with pytest.raises(ConfigError, match=r"says awq, but .* is quantized with gguf"):
        open_model(tmp_path / "m.gguf", impl, EngineConfig(quantization="awq"))


@pytest.mark.parametrize("name", QUANTIZE_ON_LOAD)
def test_a_model_is_served_with_fewer_bits(name: str) -> None:
    sizes = []
    for checkpoint in (CHECKPOINT, QuantizedOnLoad(CHECKPOINT, name)):
        executor = ModelExecutor.from_checkpoint(
            checkpoint,
            EngineConfig(device="cpu", num_gpu_blocks_override=4),
            backends_with(TorchAttention),
            no_progress,
        )
        assert executor._runner is not None
        layer = executor._runner._decoder.layers[0]  # type: ignore[attr-defined]
        sizes.append(layer.feed_forward.gate_up.num_bytes)
        executor.close()
    assert sizes[1] < sizes[0] * 0.6
