"""The maximum sequence length that model, configuration and KV cache allow."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import ModelInfo
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.checking import check_ids
from tokenmill.core.shell.new_core import fit_max_model_len, make_core
from tokenmill.core.shell.new_requests import make_requests
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


def with_images(span_tokens: int, device: str = "cpu") -> ModelInfo:
    """A model with images whose tokens see each other, in up to `span_tokens` tokens."""
    info = SimulatedExecutor(
        num_blocks=1000, block_size=16, max_model_len=10_000, media_bytes=1
    ).info
    assert info.media is not None
    media = replace(info.media, largest_span_tokens=span_tokens)
    return replace(info, device=device, media=media)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"max_num_batched_tokens": 263, "max_num_seqs": 8}, "264, or set --max-num-seqs to 7"),
        ({"max_num_batched_tokens": 256, "max_num_seqs": 8}, "264"),
        ({"max_num_batched_tokens": 300}, "512, or set --max-num-seqs to 44"),
    ],
)
def test_a_budget_without_room_for_an_image_beside_all_decodes_is_refused_with_what_would_do(
    options: dict[str, int], remedy: str
) -> None:
    with pytest.raises(ConfigError, match=f"an image of 256 tokens .*: raise it to {remedy}$"):
        fit_max_model_len(EngineConfig(**options), with_images(256))
    assert fit_max_model_len(EngineConfig(**options), with_images(0))


@pytest.mark.parametrize(
    ("device", "max_num_seqs", "span_tokens", "budget"),
    [
        ("cpu", 8, 0, 256),
        ("cpu", 8, 256, 264),
        ("cpu", 256, 256, 512),
        ("cpu", 8, 100, 256),
        ("cuda", 8, 256, 8192),
        ("cuda", 8, 9000, 9008),
    ],
)
def test_the_default_budget_has_room_for_an_image_beside_all_decodes(
    device: str, max_num_seqs: int, span_tokens: int, budget: int
) -> None:
    config, info = EngineConfig(max_num_seqs=max_num_seqs), with_images(span_tokens, device)
    max_model_len = fit_max_model_len(config, info)
    core = make_core(config, info, PluginHost.load(config), max_model_len)
    checked = check_ids(
        [1] * 9900, SamplingParams(), vocab_size=info.vocab_size, max_model_len=max_model_len
    )
    requests = make_requests(
        checked, request_id="long", seed=0, arrival_time=0.0, info=info, config=config
    )
    core.add(requests, 0.0)
    plan = core.plan(0.0)
    assert plan is not None and plan.num_tokens == budget
