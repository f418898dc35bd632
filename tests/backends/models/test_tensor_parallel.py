"""Ranks compute the logits of the whole model. Here each rank is a thread."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.backends.models.dense import compute_logits
from tests.backends.models.plain_options import OPTIONS
from tests.backends.models.ranks import Threads
from tests.backends.weights.gguf_converting import convert_to_gguf
from tests.oracle.architectures import MODELS
from tests.oracle.test_architectures import save_in_mxfp4
from tokenmill.backends.linear.torch import Linear
from tokenmill.backends.models.base import ModelSpec
from tokenmill.backends.models.native.decoder import Decoder
from tokenmill.backends.models.native.feed_forward import Experts
from tokenmill.backends.models.native.implementation import NativeModels
from tokenmill.backends.models.tensor_parallel import TensorParallel
from tokenmill.backends.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.backends.weights.expert_sharding import part_of
from tokenmill.backends.weights.sharding import Shard
from tokenmill.core.errors import ConfigError

NATIVE = NativeModels(ModelSpec(path=Path("nowhere"), fields={}))
TOKENS = torch.arange(3, 40)
WITH_EXPERTS = (
    "mixtral",
    "qwen3-moe",
    "qwen3-moe in gguf",
    "olmoe",
    "gpt-oss",
    "gpt-oss in mxfp4",
    "gpt-oss in gguf",
)


def load_parts(checkpoint: Checkpoint, size: int, whole_experts: bool) -> list[Decoder]:
    """The decoder of each rank."""
    ranks = Threads(size)

    def load(rank: int) -> Decoder:
        shard = Shard(rank=rank, size=size, whole_experts=whole_experts)
        impl = TensorParallel(NATIVE, shard, ranks)
        return impl.load(part_of(checkpoint, shard), OPTIONS)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(load, range(size)))


def logits_of(parts: list[Decoder]) -> list[torch.Tensor]:
    with ThreadPoolExecutor(len(parts)) as threads:
        return list(threads.map(_logits, parts))


def _logits(decoder: Decoder) -> torch.Tensor:
    with torch.inference_mode():
        return compute_logits(decoder, TOKENS)


@pytest.fixture(scope="module", params=WITH_EXPERTS)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    path, (name, _, format) = tmp_path_factory.mktemp("model"), request.param.partition(" in ")
    changes = {"num_attention_heads": 4, "num_key_value_heads": 4}
    model = replace(MODELS[name], changes=MODELS[name].changes | changes).make()
    if format == "mxfp4":
        save_in_mxfp4(model, path)
    else:
        model.save_pretrained(path)
    return open_checkpoint(convert_to_gguf(path, path / "m.gguf") if format == "gguf" else path)


@pytest.mark.parametrize("whole_experts", [False, True], ids=["columns", "whole experts"])
def test_experts_are_divided_without_a_change_of_the_logits(
    checkpoint: Checkpoint, whole_experts: bool
) -> None:
    expected = _logits(NATIVE.load(checkpoint, OPTIONS))
    size = 4 if whole_experts else 2
    parts = load_parts(checkpoint, size, whole_experts)
    for logits in logits_of(parts):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    _check_descriptions(checkpoint, whole_experts)
    kept = sum(part.num_parameters for part in parts)
    assert kept < (size - 0.5) * NATIVE.load(checkpoint, OPTIONS).num_parameters
    for part in parts:
        if whole_experts:
            assert part.expert_load is not None
            experts = checkpoint.config.experts
            assert experts is not None
            pairs = len(TOKENS) * experts.num_active * checkpoint.config.num_layers
            assert sum(part.expert_load.take()) == pairs
            assert part.expert_load.take() == (0,) * size


def _check_descriptions(checkpoint: Checkpoint, whole_experts: bool) -> None:
    """A description of a tensor, which estimates use, is that of the part."""
    part = part_of(checkpoint, Shard(rank=1, size=2, whole_experts=whole_experts))
    for name in part.tensor_names():
        read = part.tensor if "bias" in name else part.matrix
        assert part.stored(name).num_elements == math.prod(read(name).shape), name


def test_all_tokens_may_go_to_the_experts_of_one_rank(checkpoint: Checkpoint) -> None:
    experts = checkpoint.config.experts
    assert experts is not None
    first = Linear(
        torch.zeros(experts.num_experts, checkpoint.config.hidden_size),
        -10 * torch.arange(experts.num_experts).float(),
    )

    def send_all_to_one(decoder: Decoder) -> Decoder:
        decoder.layers = tuple(
            replace(layer, feed_forward=replace(layer.feed_forward, router=first))
            for layer in decoder.layers
            if isinstance(layer.feed_forward, Experts)
        )
        return decoder

    expected = _logits(send_all_to_one(NATIVE.load(checkpoint, OPTIONS)))
    parts = [send_all_to_one(part) for part in load_parts(checkpoint, 2, whole_experts=True)]
    for logits in logits_of(parts):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert parts[0].expert_load is not None
    busy, idle = parts[0].expert_load.take()
    assert busy > 0 == idle


def test_more_ranks_than_experts_are_refused(checkpoint: Checkpoint) -> None:
    many = Shard(rank=0, size=9, whole_experts=True)
    with pytest.raises(ConfigError, match=r"the model has only \d experts for 9 ranks"):
        part_of(checkpoint, many)
