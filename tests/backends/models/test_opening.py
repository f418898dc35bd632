"""Opening a model: who runs it, and what is read for that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny_checkpoints import TARGET, in_type, write_model
from tests.backends.weights.gguf_writing import write_gguf
from tokenmill.backends.models.bridge.bridge import TransformersModels
from tokenmill.backends.models.native.implementation import NativeModels
from tokenmill.backends.models.opening import open_model
from tokenmill.backends.weights.checkpoint_decorator import as_stored
from tokenmill.backends.weights.formats.gguf_blocks import FLOAT16
from tokenmill.backends.weights.packed import PackedWeights
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError


class Dense(NativeModels):
    """An implementation that computes with weights in floating point only."""

    name = "dense"
    keeps_packed = False


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m", replace(TARGET, num_layers=1), 0)


def test_config_json_is_read_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    open_path: Any = Path.open

    def recording(path: Path, *arguments: Any, **options: Any) -> Any:
        opened.append(path.name)
        return open_path(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", recording)
    open_model(model, NativeModels, EngineConfig())
    assert opened.count("config.json") == 1


def test_quantizing_on_load_is_refused_where_models_have_dense_weights(model: Path) -> None:
    config = EngineConfig(quantize_on_load="q8_0")
    open_model(model, NativeModels, config)
    with pytest.raises(ConfigError, match=r"q8_0 is not possible: .*'dense' computes with"):
        open_model(model, Dense, config)


def test_float16_is_kept_on_cpus_with_auto_and_made_on_request(model: Path) -> None:
    def format_of(config: EngineConfig, impl: type[NativeModels] = NativeModels) -> object:
        checkpoint, _ = open_model(model, impl, config)
        return checkpoint.stored("model.layers.0.mlp.up_proj.weight").format

    auto, asked_for = (EngineConfig(device="cpu", dtype=one) for one in ("auto", "float16"))
    assert format_of(auto) is torch.float32 and format_of(asked_for) == FLOAT16
    in_type(model, torch.float16)
    assert format_of(auto) == format_of(asked_for) == FLOAT16
    assert format_of(auto, Dense) is torch.float16
    assert format_of(EngineConfig(device="cpu", dtype="bfloat16")) is torch.float16
    checkpoint, _ = open_model(model, NativeModels, auto)
    assert checkpoint.stored("model.norm.weight").format is torch.float16
    stored = as_stored(checkpoint)
    for name in ("model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight"):
        kept = checkpoint.matrix(name)
        assert isinstance(kept, PackedWeights)
        assert torch.equal(kept.dequantize(), stored.tensor(name).float())


def test_weights_that_float16_cannot_hold_are_refused(model: Path) -> None:
    in_type(model, torch.float32, scale=1e9)
    checkpoint, _ = open_model(model, NativeModels, EngineConfig(device="cpu", dtype="float16"))
    with pytest.raises(ConfigError, match=r"up_proj.* holds no weights above 65504: use --dtype"):
        checkpoint.matrix("model.layers.0.mlp.up_proj.weight")


def test_a_gguf_file_in_float16_keeps_it(tmp_path: Path) -> None:
    config = replace(TARGET, num_layers=1)
    write_gguf(tmp_path / "m.gguf", random_checkpoint(config, 0), kind=Kind.F16)
    checkpoint, _ = open_model(tmp_path / "m.gguf", NativeModels, EngineConfig(device="cpu"))
    name = "model.layers.0.self_attn.q_proj.weight"  # whose rows have another order in the file
    assert checkpoint.stored(name).format == checkpoint.dtype == FLOAT16
    kept, stored = checkpoint.matrix(name), as_stored(checkpoint)
    assert isinstance(kept, PackedWeights) and torch.equal(kept.dequantize(), stored.tensor(name))


def test_random_weights_need_only_config_json_and_depend_on_the_seed(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no weights in"):
        open_model(model, NativeModels, EngineConfig())
    name = "model.layers.0.mlp.up_proj.weight"
    tensors = []
    for seed in (1, 1, 2):
        config = EngineConfig(load_format="dummy", seed=seed)
        checkpoint, _ = open_model(model, NativeModels, config)
        tensors.append(checkpoint.tensor(name))
        assert checkpoint.stored(name).shape == tensors[-1].shape
        assert tensors[-1].abs().max() < 2
    first, again, other = tensors
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_random_weights_have_the_type_that_config_json_states(model: Path, dtype: str) -> None:
    change_config(model, dtype=dtype)
    checkpoint, _ = open_model(model, NativeModels, EngineConfig(load_format="dummy"))
    wanted = getattr(torch, dtype)
    assert checkpoint.dtype is checkpoint.tensor("model.norm.weight").dtype is wanted


def test_random_weights_are_refused_where_they_cannot_be_made(model: Path, tmp_path: Path) -> None:
    config = EngineConfig(load_format="dummy")
    with pytest.raises(ConfigError, match="it makes no random weights"):
        open_model(model, TransformersModels, config)
    change_config(model, quantization_config={"quant_method": "fp8"})
    with pytest.raises(ConfigError, match="makes no weights of fp8: remove quantization_config"):
        open_model(model, NativeModels, config)
    gguf = tmp_path / "m.gguf"
    write_gguf(gguf, random_checkpoint(replace(TARGET, num_layers=1), 0))
    with pytest.raises(ConfigError, match=r"which m\.gguf does not have"):
        open_model(gguf, NativeModels, config)


def change_config(model: Path, **fields: object) -> None:
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
