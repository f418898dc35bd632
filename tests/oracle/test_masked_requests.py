"""Masks and logits processors change no token, however the engine computes a request."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.checking import check_ids
from tokenmill.core.shell.new_requests import make_requests
from tokenmill.testing.engine_driver import EngineDriver

from ..backends.model_engine import make_driver
from . import toy
from .settings import Setting
from .speculating import speculate

SOME = tuple(range(0, toy.CONFIG.vocab_size, 3))
WISHES: list[dict[str, Any]] = [
    {},
    {"allowed_token_ids": SOME},
    {"extra_args": {"ngram_size": 2, "window_size": 50}},
    {"allowed_token_ids": SOME, "extra_args": {"ngram_size": 1, "whitelist_token_ids": [0, 3]}},
]
SETTINGS = {
    "recompute": (
        Setting(scheduler="chunked", is_starved=True, max_num_batched_tokens=24),
        speculate("ngram", 3),
    ),
    "swap": (Setting(scheduler="prefill-first", preemption_mode="swap", is_starved=True), {}),
}


def serve(setting: Setting, options: dict[str, Any]) -> tuple[EngineDriver, list[Any]]:
    num_tokens = toy.STARVED_TOKENS if setting.is_starved else toy.AMPLE_TOKENS
    config = EngineConfig(
        device="cpu",
        num_gpu_blocks_override=num_tokens // setting.block_size,
        swap_space=2**-8,
        **setting.options() | options,
    )
    host = PluginHost.load(config)
    driver = make_driver(toy.CHECKPOINT, config, host, host.speculator)
    info = driver.executor.info
    requests = []
    for i, prompt in enumerate(toy.make_prompts()[6:]):
        wish = WISHES[i % len(WISHES)]
        params = SamplingParams(max_tokens=24, ignore_eos=True, seed=i, top_k=9 if i % 2 else 1)
        params = params.with_changes(**wish, n=1 + i % 2)
        checked = check_ids(
            prompt, params, vocab_size=info.vocab_size, max_model_len=info.max_model_len
        )
        bad_word_ids = ((5,), (SOME[4], SOME[9])) if i % 3 == 0 else ()
        requests += make_requests(
            replace(checked, bad_word_ids=bad_word_ids),
            request_id=str(i),
            seed=i,
            arrival_time=0.0,
            info=info,
            config=config,
            processors=host.processors_of(params),
        )
    for request in requests:
        driver.queue([request])
    driver.run()
    return driver, requests


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    """Every request in ample memory, without drafts."""
    driver, requests = serve(Setting(scheduler="chunked"), {})
    assert not any(request.num_preemptions for request in requests)
    return driver.tokens


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_the_same_after_preemptions_and_with_drafts(
    name: str, expected: dict[str, list[int]]
) -> None:
    driver, requests = serve(*SETTINGS[name])
    assert sum(request.num_preemptions > 0 for request in requests) > 3
    assert driver.tokens == expected
    for request in requests:
        params, tokens = request.sampling_params, expected[request.engine_id]
        assert len(tokens) == 24
        assert params.allowed_token_ids is None or set(tokens) <= set(SOME)
        size = (params.extra_args or {}).get("ngram_size")
        if size == 2:
            pairs = list(itertools.pairwise(tokens))
            assert len(set(pairs)) == len(pairs)
        if request.bad_word_ids:
            assert 5 not in tokens
