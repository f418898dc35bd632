"""The memory that a model will need, compared with what it takes; models that are too large."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from tests.backends.chosen import backends_with
from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.cpu.packed_weights import PackedLinear
from tokenmill.backends.execution.workers.division import divide_among_ranks
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.models.base import Model, ModelSpec
from tokenmill.backends.models.native.implementation import NativeModels
from tokenmill.backends.models.native.rope import RotaryTable
from tokenmill.backends.models.opening import in_float16
from tokenmill.backends.running.parts import memory_need
from tokenmill.backends.running.parts.memory_need import refuse_too_large, weight_bytes
from tokenmill.backends.running.parts.model_parts import (
    Backends,
    choose_spec,
    keeping_of,
    load_parts,
)
from tokenmill.backends.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.backends.weights.config.architectures import BY_NAME
from tokenmill.backends.weights.config.model_config import ModelConfig
from tokenmill.backends.weights.packed import WeightFormat
from tokenmill.backends.weights.quantized_on_load import QuantizedOnLoad
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

from ...models.native.test_loader import CONFIG
from ...weights.gguf_writing import write_gguf

BIG = replace(CONFIG, hidden_size=256, head_size=64, intermediate_size=512, vocab_size=4099)
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
        cast(Checkpoint, Unreadable(checkpoint)),
        keeping_of(config, BACKENDS, spec, NATIVE, checkpoint),
    )


def load_decoder(checkpoint: Checkpoint, **options: Any) -> Model:
    config = EngineConfig.from_options(device="cpu", **options)
    spec = choose_spec(checkpoint, config, BACKENDS, no_progress)
    return load_parts(checkpoint, config, BACKENDS, spec, no_progress, NATIVE).decoder


def load(checkpoint: Checkpoint, **options: Any) -> int:
    """Load the model and return the memory of its weights."""
    return load_decoder(checkpoint, **options).num_bytes


def held(one: object, found: dict[int, int]) -> dict[int, int]:
    """The memory of all tensors and packed weights of an object: sizes by address."""
    if isinstance(one, torch.Tensor):
        found[one.data_ptr()] = max(one.nbytes, found.get(one.data_ptr(), 0))
    elif isinstance(one, PackedLinear):
        found[one.struct.data] = one.num_bytes
        if isinstance(one.memory, tuple):  # segments
            del found[one.struct.data]
            held(tuple(replace(part, memory=None) for part in one.memory), found)
    elif isinstance(one, list | tuple):
        for part in one:
            held(part, found)
    elif type(one).__module__.startswith("tokenmill.") and not isinstance(
        one, ModelConfig | RotaryTable
    ):
        names = [*getattr(one, "__dict__", {}), *getattr(type(one), "__slots__", ())]
        for name in names:
            held(getattr(one, name), found)
    return found


def held_bytes(decoder: object) -> int:
    """The memory that a decoder holds; parts of other tensors count once."""
    total = end = 0
    for address, size in sorted(held(decoder, {}).items()):
        total += max(0, address + size - max(address, end))
        end = max(end, address + size)
    return total


def check_need(checkpoint: Checkpoint, **options: Any) -> int:
    """Compare the need that is estimated with the memory that the loaded weights have."""
    config = EngineConfig.from_options(device="cpu", **options)
    decoder = load_decoder(checkpoint, **options)
    need = estimate(checkpoint, config)
    assert need == decoder.num_bytes == held_bytes(decoder)
    return need


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.MXFP4, Kind.F16])
@pytest.mark.parametrize("model", [BIG, UNTIED], ids=["tied", "untied"])
def test_the_need_is_what_the_loaded_weights_take(
    dtype: str, kind: Kind, model: Any, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "m.gguf", random_checkpoint(model, 0), kind=kind)
    check_need(open_checkpoint(tmp_path / "m.gguf"), dtype=dtype)


@pytest.mark.parametrize("model", [BIG, UNTIED], ids=["tied", "untied"])
def test_weights_that_stay_in_float16_count_with_two_bytes(model: Any, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", random_checkpoint(model, 0), kind=Kind.F16)
    stored = open_checkpoint(tmp_path / "m.gguf")
    kept = in_float16(stored, NATIVE, EngineConfig(device="cpu"))
    assert isinstance(kept, QuantizedOnLoad)
    check_need(kept, dtype="auto")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["Qwen2ForCausalLM", "Gemma3ForCausalLM", "GptOssForCausalLM"])
def test_small_tensors_count_in_the_type_that_they_have(name: str, dtype: str) -> None:
    """Biases, norms of heads, norms in float32, and sinks."""
    model = replace(
        BIG,
        architecture=name,
        num_kv_heads=1,
        features=BY_NAME[name].features,
        attention_bias=name == "Qwen2ForCausalLM",
        attention_output_bias=name == "GptOssForCausalLM",
    )
    check_need(random_checkpoint(model, 0), dtype=dtype)


@pytest.mark.parametrize("model", [BIG, UNTIED], ids=["tied", "untied"])
def test_a_head_that_is_quantized_on_load_is_not_the_embedding(model: Any) -> None:
    check_need(QuantizedOnLoad(random_checkpoint(model, 0), "q4_0"))


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.F16])
@pytest.mark.parametrize("model", [BIG, UNTIED], ids=["tied", "untied"])
def test_ranks_have_one_embedding_together(model: Any, kind: Kind, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", random_checkpoint(model, 0), kind=kind)
    dtype = "bfloat16" if kind is Kind.F16 else "auto"  # some CPUs choose float32 for float16
    config = EngineConfig(device="cpu", dtype=dtype, tensor_parallel_size=2)
    spec = choose_spec(open_checkpoint(tmp_path / "m.gguf"), config, BACKENDS, no_progress)
    keeping = keeping_of(config, BACKENDS, spec, NATIVE)
    parts = divide_among_ranks(open_checkpoint(tmp_path / "m.gguf"), NATIVE, config)
    decoders = [load_decoder(part, dtype=dtype) for part in parts]
    first = decoders[0].embedding
    for rank, (part, decoder) in enumerate(zip(parts, decoders, strict=True)):
        assert not held(decoder, {}).keys() & held(first, {}).keys() or rank == 0
        own = decoder.num_bytes - (first.num_bytes if rank > 0 else 0)
        assert weight_bytes(part, keeping, is_first=rank == 0) == own
        decoder.embedding = first  # type: ignore[misc]
    assert held_bytes(decoders) == sum(
        weight_bytes(part, keeping, is_first=rank == 0) for rank, part in enumerate(parts)
    )


def test_tied_embeddings_are_in_memory_once(tmp_path: Path) -> None:
    """Also quantized ones."""
    needs = {}
    for model in (BIG, UNTIED):
        for kind in (Kind.F16, Kind.Q8_0):
            path = tmp_path / f"{kind.name}-{model.tie_word_embeddings}.gguf"
            write_gguf(path, random_checkpoint(model, 0), kind=kind)
            dtype = "bfloat16" if kind is Kind.F16 else "auto"
            needs[model is BIG, kind] = check_need(open_checkpoint(path), dtype=dtype)
    rows = -(-BIG.vocab_size // 32) * 32  # of packed weights
    assert needs[False, Kind.F16] - needs[True, Kind.F16] == BIG.vocab_size * 256 * 2
    assert needs[False, Kind.Q8_0] - needs[True, Kind.Q8_0] == rows * 256 // 32 * 34


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
