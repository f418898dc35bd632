"""The memory and messages of ranks are those that their parts of a model have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.backends.chosen import backends_with
from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny import CONFIG
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.execution.rank_memory import (
    RankMemory,
    count_blocks,
    estimate_ranks,
    refuse_ranks_too_large,
    sent_bytes,
)
from tokenmill.backends.execution.workers import division
from tokenmill.backends.execution.workers.division import divide_among_ranks, warn_of_few_cores
from tokenmill.backends.models.base import LoadOptions, ModelSpec
from tokenmill.backends.models.native.implementation import NativeModels
from tokenmill.backends.models.tensor_parallel import TensorParallel
from tokenmill.backends.running.parts.model_parts import choose_spec, keeping_of, linear_spec
from tokenmill.backends.weights.checkpoint import Checkpoint
from tokenmill.backends.weights.sharding import Shard
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

UNEVEN = replace(CONFIG, num_heads=6, num_kv_heads=3)
BACKENDS = backends_with(TorchAttention)
WHOLE = random_checkpoint(UNEVEN, 3)
NATIVE = NativeModels(ModelSpec(path=WHOLE.path, fields={}))


class Counting:
    """Ranks that count the bytes of their partial sums."""

    num_bytes = 0

    def sum(self, part: torch.Tensor) -> None:
        self.num_bytes += part.nbytes

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def config_of(size: int) -> EngineConfig:
    return EngineConfig(device="cpu", dtype="float32", tensor_parallel_size=size)


def estimate(parts: Sequence[Checkpoint], config: EngineConfig) -> tuple[RankMemory, ...]:
    spec = choose_spec(WHOLE, config, BACKENDS, no_progress)
    return estimate_ranks(parts, config, spec, keeping_of(config, BACKENDS, spec, NATIVE))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_estimate_is_the_size_of_each_loaded_part(size: int) -> None:
    ranks = Counting()
    config = config_of(size)
    spec = choose_spec(WHOLE, config, BACKENDS, no_progress)
    products = linear_spec(spec)
    options = LoadOptions(
        products=products,
        linear=BACKENDS.linear(products),
        keeps_packed=False,
        max_model_len=None,
        progress=no_progress,
    )
    parts = divide_among_ranks(WHOLE, NATIVE, config)
    for rank, (part, memory) in enumerate(zip(parts, estimate(parts, config), strict=True)):
        shard = Shard(rank=rank, size=size)
        impl = NATIVE if size == 1 else TensorParallel(NATIVE, shard, ranks)
        decoder = impl.load(part, options)
        assert memory.weights == decoder.num_bytes
        heads = part.config.num_kv_heads
        assert memory.kv_per_token == 2 * UNEVEN.num_layers * heads * UNEVEN.head_size * 4
        assert memory.kv_per_block == 16 * memory.kv_per_token
        ranks.num_bytes = 0
        tokens = torch.arange(5)
        decoder.forward(tokens, tokens, lambda layer, q_thd, k_tkd, v_tkd: q_thd)
        assert ranks.num_bytes == sent_bytes(parts, 5)


def test_ranks_share_main_memory_but_each_gpu_has_its_own() -> None:
    small = RankMemory(
        rank=0, weights=30, rotation=0, kv_per_token=1, kv_per_block=4, activations=2
    )
    large = replace(small, rank=1, weights=50, kv_per_block=6)
    assert count_blocks([small, large], torch.device("cpu"), 104) == 20 // 10
    assert count_blocks([small, large], torch.device("cuda"), 104) == 52 // 6
    assert count_blocks([small, large], torch.device("cuda"), 50) == 0


def test_caches_of_a_configured_size_must_fit_into_memory_with_all_weights() -> None:
    config = replace(config_of(2), kv_cache_memory=1 << 20)
    spec = choose_spec(WHOLE, config, BACKENDS, no_progress)
    keeping = keeping_of(config, BACKENDS, spec, NATIVE)
    parts = divide_among_ranks(WHOLE, NATIVE, config)
    refuse_ranks_too_large(parts, config, spec, keeping, 4 << 20)
    with pytest.raises(ConfigError, match="the KV caches of 2 ranks would get"):
        refuse_ranks_too_large(parts, config, spec, keeping, 2 << 20)


def test_more_ranks_than_cores_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(division, "count_usable_cores", lambda: 2)
    for size in (1, 2):
        warn_of_few_cores(config_of(size))
    assert not caplog.records
    warn_of_few_cores(config_of(3))
    [record] = caplog.records
    assert record.getMessage() == "more_ranks_than_cores"
    assert (record.__dict__["ranks"], record.__dict__["cores"]) == (3, 2)
