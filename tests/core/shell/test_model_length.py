"""The maximum sequence length that model, configuration and KV cache allow."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.shell.new_core import fit_max_model_len
from tokenmill.testing.simulated.executor import SimulatedExecutor


def fit(num_blocks: int, kv_window: int | None = None, **options: Any) -> int:
    executor = SimulatedExecutor(
        num_blocks=num_blocks, block_size=16, max_model_len=4096, kv_windows=(kv_window,)
    )
    config = EngineConfig(max_num_batched_tokens=256, max_num_seqs=8, **options)
    return fit_max_model_len(config, executor.info)


@pytest.mark.parametrize(
    ("num_blocks", "kv_window", "length"),
    [
        (1000, None, 4096),
        (20, None, 320),
        (20, 64, 320),
        (21, 64, 4096),
        (21, 65, 4096),
        (21, 66, 4096),
        (21, 67, 336),
        (1000, 10**6, 4096),
    ],
)
def test_sequences_are_longer_than_the_cache_if_a_window_and_a_step_fit(
    num_blocks: int, kv_window: int | None, length: int
) -> None:
    assert fit(num_blocks, kv_window) == length


def test_a_length_is_refused_if_the_cache_cannot_hold_it() -> None:
    assert fit(20, max_model_len=320) == 320
    assert fit(21, 64, max_model_len=2000) == 2000
    for kv_window in (None, 64):
        with pytest.raises(ConfigError, match="is 321, but the KV cache holds only 320 tokens"):
            fit(20, kv_window, max_model_len=321)
    with pytest.raises(ConfigError, match="the model was made for 4096 tokens"):
        fit(1000, 64, max_model_len=4097)


def test_cache_memory_for_almost_no_tokens_is_refused_with_a_number_that_would_do() -> None:
    with pytest.raises(ConfigError, match="holds only 32 tokens") as caught:
        fit(2, kv_cache_memory=1 << 20)
    info = SimulatedExecutor(num_blocks=2, block_size=16).info
    named = re.search(r"raise it to ([0-9]+), which holds 256 tokens", str(caught.value))
    assert named and int(named[1]) == 16 * info.kv_bytes_per_block
    assert fit(16, kv_cache_memory=1 << 20) == 256
    assert fit(2, kv_cache_memory=1 << 20, max_model_len=32) == 32
