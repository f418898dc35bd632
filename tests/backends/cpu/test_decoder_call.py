"""A whole native decoder: near float32 on the same weights, whatever batch, chunks and blocks."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from gguf import GGMLQuantizationType

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.attention.base import AttentionBackend, AttentionSpec
from tokenmill.backends.attention.mixed import make_attention
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.cpu.attention import CPUAttention
from tokenmill.backends.cpu.decoder_call import DecoderCall, Phase
from tokenmill.backends.cpu.native.library import Library
from tokenmill.backends.cpu.projections import CPULinear
from tokenmill.backends.cpu.ranks import NativeRanks
from tokenmill.backends.cpu.regions import PER_LAYER
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.models.native.decoder import Decoder
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.models.tensor_parallel import Gathered, reduce
from tokenmill.backends.running.layered_model import LayeredModel
from tokenmill.backends.running.parts.whole_step import whole_step
from tokenmill.backends.running.runner import StepModel
from tokenmill.backends.state.input_batch import InputBatch, build_input_batch
from tokenmill.backends.state.kv_cache import KVCache, allocate
from tokenmill.backends.state.request_state import RequestState
from tokenmill.backends.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.backends.weights.checkpoint_decorator import CheckpointDecorator
from tokenmill.backends.weights.config.architectures import BY_NAME
from tokenmill.backends.weights.config.features import Features, Norms
from tokenmill.backends.weights.config.kv_groups import group_layers
from tokenmill.backends.weights.config.model_config import ExpertsConfig, LayerKind, ModelConfig
from tokenmill.backends.weights.config.rope_config import RopeConfig
from tokenmill.backends.weights.formats.gguf_blocks import FLOAT16
from tokenmill.backends.weights.formats.quantizing import ROUND_TO_FLOAT16
from tokenmill.backends.weights.quantized_on_load import QuantizedOnLoad
from tokenmill.core.interfaces import no_progress
from tokenmill.core.plan import Grant, RequestStart
from tokenmill.core.processes.channels.shared_memory import unnamed_file
from tokenmill.core.requests.sampling_params import SamplingParams

from ..models.dense import compute_logits
from ..weights.gguf_writing import write_gguf

CPU = torch.device("cpu")
BLOCK_SIZE = 16
PLAIN = ModelConfig(
    architecture="LlamaForCausalLM",
    num_layers=3,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    intermediate_size=96,
    vocab_size=200,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
)
GLOBAL = LayerKind()
LOCAL = LayerKind(sliding_window=9, rope=RopeConfig(theta=100.0))
EXPERTS = ExpertsConfig(num_experts=6, num_active=4, intermediate_size=48, normalizes_shares=True)
QK_NORM = Features(qk_norm=True)
CLAMPED = replace(EXPERTS, has_biases=True, swiglu_limit=1.0)
CONFIGS = {
    "plain": PLAIN,
    "tied": replace(PLAIN, tie_word_embeddings=True),
    "biases": replace(PLAIN, attention_bias=True, attention_output_bias=True, mlp_bias=True),
    "qk-norm": replace(PLAIN, features=QK_NORM, head_size=32),
    "window": replace(PLAIN, sliding_window=9, rope=LOCAL.rope),
    "gelu": replace(PLAIN, hidden_act="gelu_pytorch_tanh"),
    "exact gelu": replace(PLAIN, hidden_act="gelu"),
    "scaled embeddings": replace(PLAIN, features=Features(scales_embedding=True)),
    "partial rotation": replace(PLAIN, head_size=48, rotary_size=32, features=QK_NORM),
    "partial rotation without norms": replace(PLAIN, head_size=48, rotary_size=32),
    "odd partial rotation": replace(PLAIN, rotary_size=10),
    "capped logits": replace(PLAIN, logits_soft_cap=2.0),
    "post-norms": replace(PLAIN, features=Features(norms=Norms.AROUND)),
    "float32 norms": replace(PLAIN, features=Features(float32_norms=True)),
    "layers without rotation": replace(PLAIN, layers=(GLOBAL, LayerKind(rope=None), GLOBAL)),
    "windows in some layers": replace(PLAIN, layers=(LOCAL, GLOBAL, LOCAL)),
    "gemma": replace(
        PLAIN,
        layers=(LOCAL, GLOBAL, LOCAL),
        hidden_act="gelu_pytorch_tanh",
        attention_soft_cap=2.0,
        logits_soft_cap=3.0,
        query_pre_attn_scalar=24.0,
        features=replace(BY_NAME["Gemma2ForCausalLM"].features, qk_norm=True),
        tie_word_embeddings=True,
    ),
    "norms of all heads": replace(PLAIN, features=Features(whole_qk_norm=True)),
    "sinks": replace(PLAIN, features=Features(attention_sinks=True)),
    "experts": replace(PLAIN, experts=EXPERTS),
    "experts, shares of all": replace(PLAIN, experts=replace(EXPERTS, normalizes_shares=False)),
    "experts, post-norms": replace(PLAIN, experts=EXPERTS, features=Features(norms=Norms.AROUND)),
    "gpt-oss": replace(
        PLAIN,
        layers=(LOCAL, GLOBAL, LOCAL),
        attention_bias=True,
        attention_output_bias=True,
        features=BY_NAME["GptOssForCausalLM"].features,
        experts=CLAMPED,
    ),
    "odd clamped gates": replace(PLAIN, experts=replace(CLAMPED, intermediate_size=40)),
}
ELSEWHERE = {"draft_vocab_size", "earlier_layers", "later_layers", "logits_part", "num_stages"}
"""Fields that parts of models and draft models have; see test_stage_call.py and the ranks below."""
LAYERED = {"exact gelu", "odd partial rotation", "odd clamped gates"}
"""These have a feature that the library does not compute."""
NUM_GROUPS = 3
"""Requests have block tables for as many groups of layers; models with fewer use the first ones."""
NUM_BLOCKS = 24 * NUM_GROUPS
TOLERANCE = 0.06
"""Of the logits' spread: some twenty roundings to 8 bits on the way. Quantized products round their
inputs to int8, too: twice as much."""


def load(checkpoint: Checkpoint, library: Library) -> Decoder:
    linear = CPULinear(LinearSpec(dtype=torch.bfloat16, device=CPU))
    return load_decoder(
        checkpoint,
        dtype=torch.bfloat16,
        device=CPU,
        progress=no_progress,
        linear=linear,
    )


class RoundedToFloat16(CheckpointDecorator):
    """A checkpoint with numbers that float16 can hold."""

    def tensor(self, name: str) -> torch.Tensor:
        return super().tensor(name).half().float()

    def matrix(self, name: str) -> torch.Tensor:
        return self.tensor(name)

    def looked_up(self, name: str) -> torch.Tensor:
        return self.tensor(name)


def load_in_float16(checkpoint: Checkpoint) -> Decoder:
    """Weights in float16, all else in float32."""
    linear = CPULinear(LinearSpec(dtype=torch.float32, device=CPU, format=FLOAT16))
    return load_decoder(
        checkpoint, dtype=torch.float32, device=CPU, progress=no_progress, linear=linear
    )


def reference(checkpoint: Checkpoint) -> Decoder:
    return load_decoder(checkpoint, dtype=torch.float32, device=CPU, progress=no_progress)


def specs_of(config: ModelConfig, dtype: torch.dtype = torch.bfloat16) -> list[AttentionSpec]:
    """The specification of every layer's attention."""
    spec = AttentionSpec(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        block_size=BLOCK_SIZE,
        dtype=dtype,
        device=CPU,
        scale=config.attention_scale,
        logits_soft_cap=config.attention_soft_cap,
        has_sinks=config.features.attention_sinks,
    )
    return [replace(spec, sliding_window=kind.sliding_window) for kind in config.layer_kinds]


def attention_of(backend: type[Any], decoder: Decoder, dtype: torch.dtype = torch.bfloat16) -> Any:
    groups = group_layers(decoder.config, None)
    assert len(groups.windows) <= NUM_GROUPS
    attention = make_attention(backend, specs_of(decoder.config, dtype), groups.group_of_layer)
    if decoder.sinks:
        attention.use_sinks(decoder.sinks)
    return attention


def cache_of(
    config: ModelConfig, attention: AttentionBackend, dtype: torch.dtype = torch.bfloat16
) -> KVCache:
    cache = allocate(
        attention,
        groups=group_layers(config, None),
        num_blocks=NUM_BLOCKS,
        num_host_blocks=0,
        block_size=BLOCK_SIZE,
        dtype=dtype,
        device=CPU,
    )
    for layer in cache.layers:
        layer.fill_(torch.nan)  # what nobody wrote must not be read
    return cache


class Sequences:
    """Requests with tokens that the test knows, computed in the amounts that it says."""

    def __init__(self, model: StepModel, prompts: Sequence[Sequence[int]]) -> None:
        self._model = model
        self._states = [
            RequestState(
                RequestStart(
                    engine_id=str(i),
                    token_ids=tuple(prompt),
                    num_prompt_tokens=len(prompt),
                    sampling_params=SamplingParams(),
                    seed=0,
                    stop_token_ids=(),
                ),
                0,
                PLAIN.vocab_size,
                num_groups=NUM_GROUPS,
            )
            for i, prompt in enumerate(prompts)
        ]
        self._free = list(range(NUM_BLOCKS - 1, -1, -2)) + list(range(0, NUM_BLOCKS, 2))

    def _take(self, num_blocks: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self._free.pop() for _ in range(num_blocks)) for _ in range(NUM_GROUPS))

    def compute(self, amounts: Sequence[int]) -> dict[int, torch.Tensor]:
        """Logits after the last token, of those that are computed to their end."""
        grants, states, numbers = [], [], []
        for number, (state, amount) in enumerate(zip(self._states, amounts, strict=True)):
            if not amount:
                continue
            start = state.num_computed_tokens
            missing = -(-(start + amount) // BLOCK_SIZE) - len(state.tables[0])
            grant = Grant(
                engine_id=str(number),
                start=start,
                num_tokens=amount,
                new_block_ids=self._take(missing),
                samples=start + amount == len(state.token_ids),
            )
            state.advance(grant, BLOCK_SIZE, NUM_BLOCKS)
            grants.append(grant)
            states.append(state)
            numbers.append(number)
        batch = build_input_batch(grants, states, BLOCK_SIZE, CPU)
        logits_rv = self._model.logits(batch)
        assert logits_rv.dtype is torch.float32
        rows = [numbers[batch.grant_order[i]] for i in batch.sampled]
        return dict(zip(rows, logits_rv, strict=True))

    def verify(self, token_ids: Sequence[int]) -> list[torch.Tensor]:
        """Logits after each of the next tokens of the only sequence; all but the first are drafts,
        and right."""
        (state,) = self._states
        state.settle(token_ids[:1])
        state.propose(token_ids[1:], None)
        start = state.num_computed_tokens
        missing = -(-(start + len(token_ids)) // BLOCK_SIZE) - len(state.tables[0])
        grant = Grant(
            engine_id="0",
            start=start,
            num_tokens=len(token_ids),
            new_block_ids=self._take(missing),
            samples=True,
            num_draft_tokens=len(token_ids) - 1,
        )
        state.advance(grant, BLOCK_SIZE, NUM_BLOCKS)
        logits_rv = self._model.logits(build_input_batch([grant], [state], BLOCK_SIZE, CPU))
        list.extend(state.token_ids, token_ids[1:])
        state.drop_drafts()
        return list(logits_rv)


def prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    size = PLAIN.vocab_size
    return [torch.randint(size, (n,), generator=generator).tolist() for n in lengths]


def assert_near(
    found: torch.Tensor, decoder: Decoder, tokens: Sequence[int], tolerance: float = TOLERANCE
) -> None:
    with torch.inference_mode():
        right = compute_logits(decoder, torch.tensor(tokens))[-1]
    assert (found - right).abs().max() < tolerance * right.std() * 4


def native(decoder: Decoder, dtype: torch.dtype = torch.bfloat16) -> DecoderCall:
    attention = attention_of(CPUAttention, decoder, dtype)
    call = whole_step(decoder, attention, cache_of(decoder.config, attention, dtype))
    assert call is not None
    return call


def test_every_feature_is_in_a_configuration_that_the_library_computes() -> None:
    native = [config for name, config in CONFIGS.items() if name not in LAYERED]
    has_default = {
        own.name
        for record in (ModelConfig, Features)
        for own in fields(record)
        if own.default is not MISSING or own.default_factory is not MISSING
    }
    found = set[str]().union(*(config.non_defaults for config in native))
    assert found == has_default - {"features"} - ELSEWHERE
    assert {config.features.norms for config in native} == set(Norms)


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - LAYERED))
def test_logits_are_near_float32_for_chunks_and_decodes_in_one_batch(
    name: str, library: Library
) -> None:
    checkpoint = random_checkpoint(CONFIGS[name], 4)
    tokens = prompts(37, 1, 20, 33)
    sequences = Sequences(native(load(checkpoint, library)), tokens)
    found = sequences.compute([32, 1, 13, 0])
    assert list(found) == [1]
    found |= sequences.compute([5, 0, 6, 33]) | sequences.compute([0, 0, 1, 0])
    right = reference(checkpoint)
    for number, token_ids in enumerate(tokens):
        assert_near(found[number], right, token_ids)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", sorted(set(CONFIGS) - LAYERED))
def test_with_weights_in_float16_logits_are_those_of_float32(name: str) -> None:
    checkpoint = RoundedToFloat16(random_checkpoint(CONFIGS[name], 4))
    decoder = load_in_float16(QuantizedOnLoad(checkpoint, ROUND_TO_FLOAT16))
    right = reference(checkpoint)
    assert decoder.layers[0].qkv.num_bytes < 0.6 * right.layers[0].qkv.num_bytes
    tokens = prompts(37, 20)
    sequences = Sequences(native(decoder, torch.float32), tokens)
    found = sequences.compute([32, 20]) | sequences.compute([5, 0])
    for number, token_ids in enumerate(tokens):
        assert_near(found[number], right, token_ids, tolerance=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_layer_by_layer_is_near_it_with_either_attention(name: str, library: Library) -> None:
    config = CONFIGS[name]
    decoder = load(random_checkpoint(config, 4), library)
    tokens = prompts(37, 5)
    outputs = []
    for backend in (CPUAttention, TorchAttention):
        attention = attention_of(backend, decoder)
        model = LayeredModel(decoder, attention, cache_of(config, attention))
        outputs.append(Sequences(model, tokens).compute([37, 5]))
    assert whole_step(decoder, attention, cache_of(config, attention)) is None  # it was chosen
    attention = attention_of(CPUAttention, decoder)
    call = whole_step(decoder, attention, cache_of(config, attention))
    assert (call is None) is (name in LAYERED)
    if call is not None:
        outputs.append(Sequences(call, tokens).compute([37, 5]))
    for number in (0, 1):
        first, *others = (found[number] for found in outputs)
        for other in others:
            assert (first - other).abs().max() < TOLERANCE * first.std() * 4


@pytest.mark.parametrize(
    "kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0]
)
def test_quantized_weights_stay_what_they_are(
    kind: GGMLQuantizationType, library: Library, tmp_path: Path
) -> None:
    config = replace(PLAIN, tie_word_embeddings=True)
    path = tmp_path / "model.gguf"
    write_gguf(path, random_checkpoint(config, 4), kind=kind)
    checkpoint = open_checkpoint(path)
    decoder = load(checkpoint, library)
    floats = load(random_checkpoint(config, 4), library)
    assert decoder.num_parameters == floats.num_parameters
    assert decoder.num_bytes < 0.75 * floats.num_bytes
    (tokens,) = prompts(37)
    found = Sequences(native(decoder), [tokens]).compute([37])
    assert_near(found[0], reference(checkpoint), tokens, tolerance=2 * TOLERANCE)


def test_a_request_s_logits_do_not_depend_on_the_others_of_its_kind(library: Library) -> None:
    decoder = load(random_checkpoint(PLAIN, 4), library)
    tokens = prompts(37, 20, 9)
    together = Sequences(native(decoder), tokens).compute([37, 20, 9])
    for number, token_ids in enumerate(tokens):
        alone = Sequences(native(decoder), [token_ids]).compute([len(token_ids)])[0]
        assert (alone - together[number]).abs().max() < TOLERANCE * alone.std()


@pytest.mark.parametrize("name", ["plain", "experts", "gpt-oss"])
def test_a_token_s_logits_are_the_same_to_the_last_bit_alone_and_with_drafts(
    name: str, library: Library
) -> None:
    """Over several chunks of keys, for as many drafts as there may be."""
    decoder = load(random_checkpoint(CONFIGS[name], 4), library)
    (tokens,) = prompts(217)

    def decode(num_at_once: int) -> list[torch.Tensor]:
        sequences = Sequences(native(decoder), [tokens[:200]])
        sequences.compute([200])
        found = []
        for begin in range(200, 217, num_at_once):
            found += sequences.verify(tokens[begin : begin + num_at_once])
        return found

    alone = decode(1)
    for num_at_once in (2, 3, 9, 16, 17):
        for one, other in zip(alone, decode(num_at_once), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "biases",
        "post-norms",
        "norms of all heads",
        "experts",
        "experts, post-norms",
        "gpt-oss",
    ],
)
def test_partial_sums_go_through_the_memory_of_all_ranks(name: str, library: Library) -> None:
    """Of one rank: the sum is its part, to the last bit, also if few rows fit at once."""
    decoder = load(random_checkpoint(CONFIGS[name], 4), library)
    (tokens,) = prompts(37)
    alone = Sequences(native(decoder), [tokens]).compute([37])[0]
    layers, head = decoder.layers, decoder.lm_head
    for num_rows in (37, 5):
        with unnamed_file() as file:
            size = num_rows * PLAIN.hidden_size
            ranks = NativeRanks(library, 0, 1, os.dup(file.fileno()), slot_floats=size)
        decoder.layers = tuple(reduce(layer, ranks) for layer in layers)
        size = PLAIN.vocab_size
        decoder.lm_head = Gathered(part=head, ranks=ranks, rank=0, first_logits=(0, size))
        sequences, before = Sequences(native(decoder), [tokens]), count_rounds(ranks)
        found = sequences.compute([37])[0]
        assert torch.equal(found, alone)
        per_layer = 2 * -(-37 // num_rows) + (name == "norms of all heads")
        assert count_rounds(ranks) - before == PLAIN.num_layers * per_layer + 1


def count_rounds(ranks: NativeRanks) -> int:
    return int.from_bytes(ctypes.string_at(ranks.struct.memory, 4), sys.byteorder)


def test_a_shared_tensor_is_in_the_file_of_all_ranks(library: Library) -> None:
    with unnamed_file() as file:
        ranks = NativeRanks(library, 0, 1, file.fileno())
        for seed in (1, 2):  # a second one does not overwrite the first
            tensor = torch.randn(300, 7, generator=torch.Generator().manual_seed(seed))
            tensor = tensor.to(torch.bfloat16)
            before = os.fstat(file.fileno()).st_size
            shared = ranks.share(tensor)
            assert torch.equal(shared, tensor) and shared.data_ptr() != tensor.data_ptr()
            stored = os.pread(file.fileno(), tensor.nbytes, before)
            assert torch.equal(
                torch.frombuffer(bytearray(stored), dtype=torch.int16).view(300, 7),
                tensor.view(torch.int16),
            )


def test_hidden_states_are_those_that_the_logits_were_made_of(library: Library) -> None:
    decoder = load(random_checkpoint(PLAIN, 4), library)
    call = native(decoder)
    tokens = prompts(37, 20, 9)
    logits = Sequences(call, tokens).compute([37, 20, 9])
    hidden_re = call.hidden_states()
    assert hidden_re.shape == (3, PLAIN.hidden_size) and hidden_re.dtype is torch.bfloat16
    for row, found in zip(decoder.compute_logits(hidden_re), logits.values(), strict=True):
        torch.testing.assert_close(row, found)


def test_regions_are_measured_on_request_and_change_nothing(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = native(load(random_checkpoint(PLAIN, 4), library))
    marks: list[int | None] = []
    run: Any = call._run

    def watched(model: Any, step: Any) -> None:
        marks.append(step._obj.marks)
        run(model, step)

    monkeypatch.setattr(call, "_run", watched)
    (tokens,) = prompts(37)
    wanted = Sequences(call, [tokens]).compute([37])[0]
    assert marks == [None] and call.regions.take() == ()
    call.regions.begin(is_measured=True)
    began = time.monotonic()
    assert torch.equal(Sequences(call, [tokens]).compute([37])[0], wanted)
    ended = time.monotonic()
    assert marks[1] is not None
    [regions] = call.regions.take()
    found = list(regions)
    names = [(name, layer) for layer in range(PLAIN.num_layers) for name in PER_LAYER]
    assert [one[:2] for one in found] == [("embedding", None), *names, ("logits", None)]
    for before, after in pairwise(found):
        assert before.ended == after.began and before.ended >= before.began
    assert began <= found[0].began and found[-1].ended <= ended
    call.regions.begin(is_measured=False)
    Sequences(call, [tokens]).compute([37])
    assert marks[2] is None and call.regions.take() == ()


def test_regions_have_their_names_in_a_step_with_three_rotary_positions(library: Library) -> None:
    layer = LayerKind(rope=RopeConfig(theta=100.0, sections=(2, 3, 3)))
    config = replace(PLAIN, layers=(layer,) * PLAIN.num_layers)
    call = native(load(random_checkpoint(config, 4), library))

    def turned(batch: InputBatch) -> torch.Tensor:
        return call.logits(replace(batch, rotary_3t=batch.positions_t.long().repeat(3, 1)))

    (tokens,) = prompts(37)
    wanted = Sequences(call, [tokens]).compute([37])[0]
    call.regions.begin(is_measured=True)
    model = cast(StepModel, SimpleNamespace(logits=turned))
    assert torch.equal(Sequences(model, [tokens]).compute([37])[0], wanted)
    [regions] = call.regions.take()
    names = [name for name, *_ in regions]
    assert names == ["embedding", *PER_LAYER * PLAIN.num_layers, "logits"]


def test_the_time_of_every_phase_is_counted_on_request(library: Library) -> None:
    call = native(load(random_checkpoint(PLAIN, 4), library))
    (tokens,) = prompts(37)
    untimed = Sequences(call, [tokens]).compute([37])[0]
    call.start_timing()
    assert not any(call.read_timing().values())
    timed = Sequences(call, [tokens]).compute([37])[0]
    found = call.read_timing()
    assert set(found) == set(Phase) and all(seconds > 0 for seconds in found.values())
    assert torch.equal(timed, untimed)
