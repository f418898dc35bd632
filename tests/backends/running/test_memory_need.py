"""The memory that a model will need, compared with what it takes; models that are too large."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from gguf import GGMLQuantizationType as Kind

from tests.backends.chosen import backends_with
from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.models.base import ModelSpec
from tokenmill.backends.models.native import NativeModels
from tokenmill.backends.running import memory_need
from tokenmill.backends.running.memory_need import refuse_too_large, weight_bytes
from tokenmill.backends.running.model_parts import Backends, choose_spec, keeping_of, load_parts
from tokenmill.backends.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.backends.weights.packed import WeightFormat
from tokenmill.backends.weights.quantized_on_load import QuantizedOnLoad
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

from ..models.test_loader import CONFIG
from ..weights.gguf_writing import write_gguf

BIG = replace(CONFIG, hidden_size=256, head_size=64, intermediate_size=512, vocab_size=4096)
UNTIED = replace(BIG, tie_word_embeddings=False)
BACKENDS = backends_with(TorchAttention)
NATIVE = NativeModels(ModelSpec(path=Path("nowhere"), fields={}))
GIB = 1 << 30


class Unreadable:
    """A checkpoint whose tensors must not be read."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __getattr__(self, name: str) -> Any:
        assert name not in ("tensor", "matrix"), "the weights were read"
        return getattr(self._checkpoint, name)


def pretend_available(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    monkeypatch.setattr(memory_need, "available_memory", lambda device: num_bytes)


def estimate(checkpoint: Checkpoint, config: EngineConfig) -> int:
    spec = choose_spec(checkpoint, config, BACKENDS, no_progress)
    return weight_bytes(
        cast(Checkpoint, Unreadable(checkpoint)), keeping_of(config, BACKENDS, spec, NATIVE)
    )


def load(checkpoint: Checkpoint, **options: Any) -> int:
    """Load the model and return the memory of its weights."""
    config = EngineConfig.from_options(device="cpu", **options)
    spec = choose_spec(checkpoint, config, BACKENDS, no_progress)
    return load_parts(checkpoint, config, BACKENDS, spec, no_progress, NATIVE).decoder.num_bytes


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.MXFP4, Kind.F16])
@pytest.mark.parametrize("model", [BIG, UNTIED], ids=["tied", "untied"])
def test_the_need_is_what_the_loaded_weights_take(
    dtype: str, kind: Kind, model: Any, tmp_path: Path
) -> None:
    """Apart from norms, which `num_bytes` leaves out, from padding, and from a packed copy of the
    head."""
    write_gguf(tmp_path / "m.gguf", random_checkpoint(model, 0), kind=kind)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    config = EngineConfig.from_options(device="cpu", dtype=dtype)
    need, taken = estimate(checkpoint, config), load(checkpoint, dtype=dtype)
    head = 4096 * 256 * 4 if model is BIG else 0
    assert 0.98 * (taken - head) < need < 1.02 * taken


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = cast(Checkpoint, Unreadable(random_checkpoint(BIG, 0)))
    pretend_available(monkeypatch, 1 << 20)
    with pytest.raises(ConfigError) as caught:
        load(checkpoint, dtype="float32")
    message = str(caught.value)
    assert "needs 0.01 GiB of memory for its weights, computed in float32" in message
    assert "0.00 GiB are available: use a smaller model" in message
    assert message.isprintable()


def test_the_least_memory_that_is_enough_is_the_need_and_one_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = random_checkpoint(UNTIED, 0)
    config = EngineConfig(device="cpu", dtype="float32")
    block = 2 * 2 * 16 * UNTIED.num_kv_heads * 64 * 4
    rotation = UNTIED.max_position_embeddings * 64 * (4 + 4)
    enough = estimate(checkpoint, config) + block + rotation
    pretend_available(monkeypatch, enough)
    load(checkpoint, dtype="float32")
    pretend_available(monkeypatch, enough - 1)
    with pytest.raises(ConfigError, match="are available"):
        load(checkpoint, dtype="float32")


def test_only_flags_that_make_it_fit_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoint = random_checkpoint(UNTIED, 0)
    whole = estimate(checkpoint, EngineConfig(device="cpu", dtype="float32"))
    pretend_available(monkeypatch, int(0.6 * whole))
    with pytest.raises(ConfigError, match=r"available: .*use --dtype bfloat16 or use a smaller"):
        load(checkpoint, dtype="float32")
    pretend_available(monkeypatch, int(0.4 * whole))
    with pytest.raises(ConfigError, match=r"available: use a smaller model"):
        load(checkpoint, dtype="float32")


class KeepsAll(TorchLinear):
    """A linear backend that would compute with any packed weights."""

    @classmethod
    def keeps(cls, spec: LinearSpec, format: WeightFormat) -> bool:
        return True


def test_quantization_on_load_is_named_where_it_makes_the_model_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = random_checkpoint(UNTIED, 0)
    config = EngineConfig(device="cpu")
    backends = Backends(TorchAttention, KeepsAll, NativeModels)
    spec = choose_spec(checkpoint, config, backends, no_progress)
    keeping = keeping_of(config, backends, spec, NATIVE)
    need = {
        name: weight_bytes(QuantizedOnLoad(checkpoint, name), keeping) for name in ("q8_0", "q4_0")
    }
    assert need["q4_0"] < need["q8_0"] < weight_bytes(checkpoint, keeping)
    others = 1 + memory_need.rotary_bytes(UNTIED, spec.dtype)
    for named in ("q8_0", "q4_0"):
        pretend_available(monkeypatch, need[named] + others)
        with pytest.raises(ConfigError, match=f"use --quantize-on-load {named}") as caught:
            refuse_too_large([checkpoint], config, keeping, block_bytes=1)
        assert ("q8_0" in str(caught.value)) is (named == "q8_0")


def test_quantization_on_load_is_not_named_for_models_that_refuse_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Dense(NativeModels):
        keeps_packed = False

    checkpoint = random_checkpoint(UNTIED, 0)
    config = EngineConfig(device="cpu", dtype="bfloat16")
    backends = Backends(TorchAttention, KeepsAll, NativeModels)
    spec = choose_spec(checkpoint, config, backends, no_progress)
    impl = Dense(ModelSpec(path=checkpoint.path, fields={}))
    keeping = keeping_of(config, backends, spec, impl)
    pretend_available(monkeypatch, weight_bytes(checkpoint, keeping) - 1)
    with pytest.raises(ConfigError, match="available: use a smaller model"):
        refuse_too_large([checkpoint], config, keeping, block_bytes=1)
