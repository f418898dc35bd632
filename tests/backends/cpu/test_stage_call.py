"""Stages of a native decoder: the bits of the whole decoder, whatever batch and chunks."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.cpu.attention import CPUAttention
from tokenmill.backends.cpu.decoder_call import DecoderCall
from tokenmill.backends.cpu.native.library import Library
from tokenmill.backends.cpu.ranks import NativeRanks
from tokenmill.backends.models.native.decoder import Decoder
from tokenmill.backends.models.pipeline_parallel import StagedDecoder
from tokenmill.backends.models.tensor_parallel import Gathered, reduce
from tokenmill.backends.running.parts.whole_step import whole_step
from tokenmill.backends.sampling.ops import SamplingOps
from tokenmill.backends.state.input_batch import InputBatch
from tokenmill.backends.weights.config.model_config import ModelConfig
from tokenmill.backends.weights.stages import StagedCheckpoint, StageLayers
from tokenmill.core.processes.channels.shared_memory import unnamed_file

from .test_decoder_call import CONFIGS, PLAIN, Sequences, attention_of, cache_of, load, native
from .test_decoder_call import prompts as make_prompts

NUM_STAGES = 3


class Queue:
    """The neighbours of all stages: the messages that the next stage has not received."""

    def __init__(self) -> None:
        self._messages: deque[torch.Tensor] = deque()
        self._sent: list[tuple[torch.Tensor, torch.Tensor]] = []

    def receive(self, num_tokens: int, hidden_size: int, dtype: torch.dtype) -> torch.Tensor:
        sent_te = self._messages.popleft()
        assert sent_te.shape == (num_tokens, hidden_size) and sent_te.dtype is dtype
        return sent_te.clone()

    def send(self, hidden_te: torch.Tensor) -> None:
        for sent_te, copy_te in self._sent:
            assert torch.equal(sent_te, copy_te), "it may still be on its way"
        self._sent.append((hidden_te, hidden_te.clone()))
        self._messages.append(hidden_te)


class Pipeline:
    """A StepModel of all stages, one after the other."""

    def __init__(self, stages: Sequence[DecoderCall]) -> None:
        *self._early, self._last = stages
        self.sampling: SamplingOps = self._last.sampling

    def logits(self, batch: InputBatch) -> torch.Tensor:
        for stage in self._early:
            stage.forward(batch)
        return self._last.logits(batch)

    def hidden_states(self) -> torch.Tensor:
        return self._last.hidden_states()


def stages_of(config: ModelConfig, library: Library, ranks: NativeRanks | None = None) -> Pipeline:
    """One layer per stage. `ranks`: of one rank, which adds up its own partial sums."""
    neighbours, stages = Queue(), []
    for stage in range(NUM_STAGES):
        own = StageLayers(stage=stage, num_stages=NUM_STAGES, layers=range(stage, stage + 1))
        decoder = load(StagedCheckpoint(random_checkpoint(config, 4), own), library)
        if ranks is not None:
            divide(decoder, ranks)
        attention = attention_of(CPUAttention, decoder)
        cache = cache_of(decoder.config, attention)
        call = whole_step(StagedDecoder(decoder, neighbours), attention, cache)
        assert call is not None
        stages.append(call)
    return Pipeline(stages)


def divide(decoder: Decoder, ranks: NativeRanks) -> None:
    decoder.layers = tuple(reduce(layer, ranks) for layer in decoder.layers)
    decoder.lm_head = Gathered(
        part=decoder.lm_head, ranks=ranks, rank=0, first_logits=(0, PLAIN.vocab_size)
    )


def compute(model: Sequences) -> dict[int, torch.Tensor]:
    """Logits of chunks and decodes in one batch."""
    return model.compute([32, 1, 13]) | model.compute([5, 0, 7])


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "tied",
        "window",
        "windows in some layers",
        "layers without rotation",
        "scaled embeddings",
        "capped logits",
        "experts",
        "sinks",
        "gemma",
        "gpt-oss",
    ],
)
def test_logits_are_those_of_the_whole_decoder_to_the_last_bit(name: str, library: Library) -> None:
    config, tokens = CONFIGS[name], make_prompts(37, 1, 20)
    wanted = compute(Sequences(native(load(random_checkpoint(config, 4), library)), tokens))
    found = compute(Sequences(stages_of(config, library), tokens))
    assert found.keys() == wanted.keys() == {0, 1, 2}
    assert all(torch.equal(found[number], wanted[number]) for number in wanted)


def test_a_stage_adds_up_the_partial_sums_of_its_ranks(library: Library) -> None:
    tokens = make_prompts(37, 1, 20)
    wanted = compute(Sequences(native(load(random_checkpoint(PLAIN, 4), library)), tokens))
    with unnamed_file() as file:
        ranks = NativeRanks(library, 0, 1, os.dup(file.fileno()), slot_floats=7 * 64)
    found = compute(Sequences(stages_of(PLAIN, library, ranks), tokens))
    assert all(torch.equal(found[number], wanted[number]) for number in wanted)


def test_hidden_states_of_the_last_stage_are_those_of_the_whole_decoder(library: Library) -> None:
    tokens = make_prompts(37, 1, 20)
    whole, stages = native(load(random_checkpoint(PLAIN, 4), library)), stages_of(PLAIN, library)
    for model in (whole, stages):
        Sequences(model, tokens).compute([37, 1, 20])
    assert torch.equal(stages.hidden_states(), whole.hidden_states())


def test_a_stage_with_a_feature_that_the_library_lacks_runs_layer_by_layer(
    library: Library,
) -> None:
    config = replace(PLAIN, hidden_act="gelu")
    own = StageLayers(stage=1, num_stages=3, layers=range(1, 2))
    decoder = load(StagedCheckpoint(random_checkpoint(config, 4), own), library)
    attention = attention_of(CPUAttention, decoder)
    staged = StagedDecoder(decoder, Queue())
    assert whole_step(staged, attention, cache_of(decoder.config, attention)) is None
