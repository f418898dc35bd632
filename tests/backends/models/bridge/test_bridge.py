"""Which models the bridge to transformers runs, and what it says of the others."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny import CONFIG as TINY
from tests.backends.tiny_checkpoints import TARGET
from tests.backends.weights.gguf_writing import write_gguf
from tests.backends.weights.quantization.checkpoints import write_llama
from tests.backends.weights.quantization.writers import CASES
from tests.oracle.architectures import MODELS, SIZES
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.torch import EmbeddingTable, TorchLinear
from tokenmill.backends.models.base import LoadOptions, Model, ModelImpl
from tokenmill.backends.models.bridge import plugin
from tokenmill.backends.models.bridge.bridge import TransformersModels, check_independence
from tokenmill.backends.models.bridge.model import BridgedModel
from tokenmill.backends.models.opening import choose_model_impl, describe, open_model
from tokenmill.backends.running.parts.memory_need import weight_bytes
from tokenmill.backends.running.parts.model_parts import Backends, choose_spec, keeping_of
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import no_progress


def write_config(folder: Path, family: str, **changes: Any) -> Path:
    """Write a config.json with the changes as they are: transformers checks what it writes."""
    config = getattr(transformers, f"{family}Config")(**SIZES)
    config.save_pretrained(folder)
    file = folder / "config.json"
    named = {"architectures": [f"{family.removesuffix('Text')}ForCausalLM"]}
    file.write_text(json.dumps(json.loads(file.read_text()) | named | changes))
    return folder


def open_with(path: Path, **options: Any) -> ModelImpl:
    config = EngineConfig(**options)
    return open_model(path, choose_model_impl(PluginHost.load(config)), config)[1]


def load(path: Path, **options: Any) -> Model:
    """Load a checkpoint through the bridge, with torch's products."""
    config = EngineConfig(model_impl="transformers", **options)
    checkpoint, impl = open_model(path, choose_model_impl(PluginHost.load(config)), config)
    products = LinearSpec(dtype=torch.float32, device=torch.device("cpu"))
    loading = LoadOptions(
        products=products,
        linear=TorchLinear(products),
        keeps_packed=True,
        max_model_len=None,
        progress=no_progress,
    )
    return impl.load(checkpoint, loading)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(tmp_path)
    return tmp_path


def reasons_against(path: Path) -> list[str]:
    return TransformersModels.reasons_against(describe(path))


def test_sizes_are_found_without_weights(tmp_path: Path) -> None:
    path = write_config(
        tmp_path, "Granite", head_dim=32, attention_multiplier=0.25, num_key_value_heads=1
    )
    config = TransformersModels(describe(path)).read_config()
    assert config.architecture == "GraniteForCausalLM"
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (4, 4, 1)
    assert config.attention_scale == pytest.approx(0.25)
    assert config.vocab_size == SIZES["vocab_size"]


def test_windows_are_found_per_layer(tmp_path: Path) -> None:
    path = write_config(tmp_path, "Cohere2", sliding_window=24)
    kinds = TransformersModels(describe(path)).read_config().layer_kinds
    assert [kind.sliding_window for kind in kinds] == [24, 24, 24, None]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no attention": ("Mamba", {}, "has layers of type linear_attention, which keep states"),
    "no attention interface": ("Bloom", {}, "has 4 layers, but 0 of them attend"),
    "convolutions in some layers": (
        "Lfm2",
        {"layer_types": ["conv", "full_attention"] * 2},
        "Lfm2ForCausalLM of transformers has layers of type conv, which keep states",
    ),
    "attention of its own": ("Falcon", {}, "falcon of transformers does not use its attention"),
    "latent attention with heads of two sizes": (
        "DeepseekV3",
        {"v_head_dim": 16, "n_routed_experts": 8, "first_k_dense_replace": 4},
        "queries, keys or values of layer 0 differ in size",
    ),
    "attention within chunks": (
        "Llama4Text",
        {"attention_chunk_size": 24, "intermediate_size_mlp": 32, "num_local_experts": 2},
        "attends within 24 tokens by a mask of its own",
    ),
    "remote code": (
        "Granite",
        {"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}},
        "has auto_map, which is not supported",
    ),
    "more layers than fit into memory": (
        "Granite",
        {"num_hidden_layers": 10**9},
        "has num_hidden_layers 1000000000; at most 4096 can be built",
    ),
    "no layers": (
        "Granite",
        {"num_hidden_layers": -1},
        "num_hidden_layers in .* must be between 1 and 4096, got -1",
    ),
    "a vocabulary that fills the memory": (
        "Granite",
        {"vocab_size": 10**9},
        "vocab_size in .* must be between 1 and 16777216, got 1000000000",
    ),
    "a number that is none": ("Granite", {"rms_norm_eps": math.nan}, "has rms_norm_eps NaN"),
    "frequencies of the longest sequence": (
        "Granite",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        "'dynamic', which depends on the longest sequence of a batch",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_models_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    family, changes, message = REFUSED[case]
    (reason,) = reasons_against(write_config(tmp_path, family, **changes))
    assert re.search(message, reason), reason
    assert "\n" not in reason


def test_models_unknown_to_transformers_get_the_reasons_of_all_implementations(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(
        '{"architectures": ["FooForCausalLM"], "model_type": "foo"}'
    )
    with pytest.raises(ConfigError, match=r"native: .*FooForCausalLM.*; transformers: .*foo"):
        open_with(tmp_path)


def test_a_gguf_file_is_not_for_the_bridge(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", random_checkpoint(TINY, 0))
    assert "not GGUF files" in reasons_against(tmp_path / "m.gguf")[0]


def test_the_native_implementation_is_preferred_and_the_bridge_can_be_forced(
    tmp_path: Path,
) -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    model.save_pretrained(tmp_path)
    for name, expected in (("auto", "native"), ("transformers", "transformers")):
        assert open_with(tmp_path, model_impl=name).name == expected


def test_without_transformers_the_reason_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(plugin, "find_spec", lambda name: None)
    spec = describe(write_config(tmp_path, "Granite"))
    reasons = plugin._transformers().reasons_against(spec)
    assert reasons == ["it needs the package transformers: pip install 'transformers>=5'"]


def test_a_whole_checkpoint_is_loaded(llama: Path) -> None:
    stored = load_file(llama / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(load(llama).embedding.weight_ve, stored)


def test_a_checkpoint_without_one_of_its_tensors_is_refused(llama: Path) -> None:
    """transformers itself draws the missing numbers at random, and only warns."""
    tensors = load_file(llama / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, llama / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 1 tensors: model\.layers\.1\.mlp\.up_proj"):
        load(llama)


def test_quantizing_on_load_is_refused(llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"q8_0 is not possible: .*'transformers'"):
        load(llama, quantize_on_load="q8_0")


def stated_bytes(path: Path) -> int:
    """The memory for the weights that the engine computes before it loads them."""
    config = EngineConfig(model_impl="transformers", dtype="float32", device="cpu")
    backends = Backends(TorchAttention, TorchLinear, TransformersModels)
    checkpoint, impl = open_model(path, choose_model_impl(PluginHost.load(config)), config)
    spec = choose_spec(checkpoint, config, backends, no_progress)
    return weight_bytes(checkpoint, keeping_of(config, backends, spec, impl))


@pytest.mark.parametrize("case", ["awq", "gptq, act-order", "fp8, blocks"])
def test_packed_weights_are_dequantized_and_the_log_has_the_price(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, expected = write_llama(tmp_path, CASES[case])
    model = load(tmp_path)
    assert isinstance(model, BridgedModel)
    loaded = dict(model.model.named_parameters())
    for name, tensor in expected.items():
        assert name not in loaded or torch.equal(loaded[name], tensor), name
    assert len(loaded.keys() & expected.keys()) == len(expected)
    (event,) = [vars(one) for one in caplog.records if one.msg == "weights_dequantized"]
    assert sum(event["matrices"].values()) == 7 * TARGET.num_layers
    assert stated_bytes(tmp_path) == model.num_bytes


def test_a_method_that_is_not_supported_is_a_reason(tmp_path: Path) -> None:
    quantization = {"quant_method": "bitnet"}
    path = write_config(tmp_path, "Granite", quantization_config=quantization)
    (reason,) = reasons_against(path)
    assert "quant_method 'bitnet', which is not supported; supported: awq" in reason


def test_only_the_text_model_of_a_multimodal_one_is_loaded(tmp_path: Path) -> None:
    """Memory for a vision tower would be wasted: requests have no pictures."""
    whole = MODELS["gemma3, multimodal"].make()
    whole.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.config.architecture == "Gemma3ForCausalLM"
    text = whole.model.language_model
    assert model.num_parameters == sum(one.numel() for one in text.parameters())
    assert torch.equal(model.embedding.weight_ve, text.embed_tokens.weight)
    assert stated_bytes(tmp_path) == model.num_bytes


class Mixing:
    """A bridged model in which each token sees its neighbour."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.embedding = EmbeddingTable(torch.randn(config.vocab_size, 8))

    def forward(self, token_ids_t: torch.Tensor, *_: Any) -> torch.Tensor:
        hidden = self.embedding(token_ids_t)
        return hidden + hidden.roll(1, dims=0)


def test_tokens_that_mix_outside_of_attention_are_found(tmp_path: Path) -> None:
    path = write_config(tmp_path, "Granite")
    config = TransformersModels(describe(path)).read_config()
    with pytest.raises(ConfigError, match="mixes tokens outside of attention"):
        check_independence(Mixing(config), "here")  # type: ignore[arg-type]
