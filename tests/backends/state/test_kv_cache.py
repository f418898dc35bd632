"""Arithmetic of the KV cache's memory, with the knobs named where it does not work out."""

from __future__ import annotations

import pytest
import torch

from tokenmill.backends.state import kv_cache
from tokenmill.backends.state.kv_cache import GPUMemory
from tokenmill.backends.weights.config.kv_groups import one_group
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError

from ..tiny import CONFIG, attention

BLOCK = kv_cache.bytes_per_block(CONFIG, 16, torch.float32)


def pretend_free(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    monkeypatch.setattr(kv_cache, "usable_memory", lambda: available)


def test_a_block_s_bytes_are_those_of_its_tensors() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        cache = kv_cache.allocate(
            attention(16),
            groups=one_group(CONFIG),
            num_blocks=10,
            num_host_blocks=4,
            block_size=16,
            dtype=dtype,
            device=torch.device("cpu"),
        )
        expected = kv_cache.bytes_per_block(CONFIG, 16, dtype)
        assert sum(layer.nbytes for layer in cache.layers) == 10 * expected
        assert sum(layer.nbytes for layer in cache.host_tensors) == 4 * expected
        assert not any(layer.any() for layer in cache.layers)
        assert (cache.num_blocks, cache.block_size, cache.device.type) == (10, 16, "cpu")
    assert BLOCK == 2 * 2 * 16 * 2 * 8 * 4  # k and v, layers, tokens, KV heads, head size, bytes


def test_a_cpu_s_cache_that_is_larger_than_what_is_free_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_free(monkeypatch, 10 * BLOCK - 1)
    with pytest.raises(ConfigError, match=r"are free: lower --kv-cache-memory"):
        kv_cache.allocate(
            attention(16),
            groups=one_group(CONFIG),
            num_blocks=10,
            num_host_blocks=0,
            block_size=16,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )


def test_the_override_wins_over_every_byte_count() -> None:
    config = EngineConfig(num_gpu_blocks_override=7, kv_cache_memory=1)
    assert kv_cache.fixed_num_blocks(config, BLOCK) == 7


def test_kv_cache_memory_is_filled_with_whole_blocks() -> None:
    config = EngineConfig(kv_cache_memory=5 * BLOCK - 1)
    assert kv_cache.fixed_num_blocks(config, BLOCK) == 4
    assert kv_cache.fixed_num_blocks(EngineConfig(), BLOCK) is None


def test_too_little_kv_cache_memory_is_refused_with_the_number_that_would_do() -> None:
    config = EngineConfig(kv_cache_memory=BLOCK - 1)
    message = f"would get {BLOCK - 1} bytes .* of 16 tokens needs {BLOCK}: raise --kv-cache-memory"
    with pytest.raises(ConfigError, match=f"{message} to {BLOCK} or more"):
        kv_cache.fixed_num_blocks(config, BLOCK)


@pytest.mark.parametrize(
    ("free", "expected"), [(4 << 20, 1 << 20), (3 << 30, 3 << 28), (100 << 30, 1 << 30)]
)
def test_a_cpu_gives_a_quarter_of_what_is_free_and_at_most_one_gib(
    monkeypatch: pytest.MonkeyPatch, free: int, expected: int
) -> None:
    pretend_free(monkeypatch, free)
    assert kv_cache.count_cpu_blocks(EngineConfig(), CONFIG, 1 << 16) == expected >> 16


def test_a_cpu_without_free_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_free(monkeypatch, 4 * BLOCK - 4)
    with pytest.raises(ConfigError, match=r"free some memory .* or set --kv-cache-memory"):
        kv_cache.count_cpu_blocks(EngineConfig(), CONFIG, BLOCK)


def test_a_tiny_model_does_not_get_more_blocks_than_could_be_of_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless that many sequences of full length are allowed to run."""
    pretend_free(monkeypatch, 100 << 30)
    few = EngineConfig(max_num_seqs=1)
    assert kv_cache.count_cpu_blocks(few, CONFIG, 512) == kv_cache.AMPLE_BLOCKS
    many = EngineConfig(max_num_seqs=10_000, max_model_len=200)
    assert kv_cache.count_cpu_blocks(many, CONFIG, 512) == 10_000 * 13


MEMORY = GPUMemory(
    total=1000 << 20, free=800 << 20, weights=300 << 20, activations=1 << 27, other=50 << 20
)


def test_a_gpu_gives_what_is_left_of_its_part() -> None:
    """The part of one engine: others may have parts of their own."""
    assert MEMORY.room(0.5) == (500 - 300 - 128 - 50) << 20
    config = EngineConfig(gpu_memory_utilization=0.5)
    assert kv_cache.count_gpu_blocks(config, CONFIG, 1 << 20, MEMORY) == 22


def test_an_engine_takes_no_more_of_a_gpu_than_is_free() -> None:
    assert MEMORY.room(0.9) == (760 - 300 - 128 - 50) << 20


def test_a_full_gpu_is_refused_with_everything_that_takes_its_memory() -> None:
    config = EngineConfig(gpu_memory_utilization=0.4)
    with pytest.raises(ConfigError) as caught:
        kv_cache.count_gpu_blocks(config, CONFIG, 1 << 20, MEMORY)
    message = str(caught.value)
    for words in (
        "would get 0 bytes",
        f"needs {1 << 20}",
        "400 of the GPU's 1000 MiB may be used (--gpu-memory-utilization 0.4; 800 MiB were free)",
        "weights take 300 MiB, activations 128 MiB and libraries 50 MiB",
        "Raise --gpu-memory-utilization",
    ):
        assert words in message


def test_swap_space_is_what_was_asked_for_or_a_quarter_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_free(monkeypatch, 8 << 30)
    assert kv_cache.count_host_blocks(EngineConfig(swap_space=0.5), 1 << 20) == 512
    assert kv_cache.count_host_blocks(EngineConfig(swap_space=0), 1 << 20) == 0
    assert kv_cache.count_host_blocks(EngineConfig(), 1 << 20) == 2048
    pretend_free(monkeypatch, 64 << 30)
    assert kv_cache.count_host_blocks(EngineConfig(), 1 << 20) == 4096


@pytest.mark.parametrize("name", ["data_parallel_size", "tensor_parallel_size"])
def test_processes_that_load_the_model_share_the_free_memory(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pretend_free(monkeypatch, 3 << 30)
    config = EngineConfig(**{name: 3})
    assert kv_cache.count_cpu_blocks(config, CONFIG, 1 << 16) == (1 << 28) >> 16
    assert kv_cache.count_host_blocks(config, 1 << 20) == 256


def test_more_swap_space_than_is_free_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_free(monkeypatch, 8 << 30)
    with pytest.raises(
        ConfigError, match=r"--swap-space asks for 9 GiB, but only 8\.0 GiB are free"
    ):
        kv_cache.count_host_blocks(EngineConfig(swap_space=9), 1 << 20)
