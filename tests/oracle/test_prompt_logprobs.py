"""Log-probabilities of prompt tokens are those of transformers, however the prompt is computed."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.plan import TokenLogprobs
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell import new_core
from tokenmill.core.shell.checking import check_ids
from tokenmill.core.shell.new_requests import make_requests
from tokenmill.testing.engine_driver import EngineDriver

from ..backends.model_engine import make_driver
from . import toy
from .settings import Setting
from .speculating import speculate

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, prompt_logprobs=3, n=2)
MANY = 10**6
SETTINGS = {
    "whole": (MANY, Setting(scheduler="chunked"), {}),
    "few rows": (7, Setting(scheduler="chunked", block_size=8), {}),
    "recompute": (
        MANY,
        Setting(scheduler="chunked", is_starved=True, max_num_batched_tokens=24),
        {},
    ),
    "swap": (
        MANY,
        Setting(scheduler="prefill-first", preemption_mode="swap", is_starved=True),
        {},
    ),
    "uncached": (MANY, Setting(scheduler="prefill-first", enable_prefix_caching=False), {}),
    "drafts": (30, Setting(scheduler="chunked"), speculate("ngram", 3)),
}
"""By name: maximum number of prompt tokens that a step scores, and how the engine serves."""


@pytest.fixture(scope="module")
def model() -> Any:
    return toy.make_reference()


@pytest.mark.parametrize("name", SETTINGS)
def test_they_are_those_of_transformers(
    name: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    most_rows, setting, options = SETTINGS[name]
    monkeypatch.setattr(new_core, "_max_num_scored_tokens", lambda *_: most_rows)
    driver, config = make(setting, options)
    prompts = toy.make_prompts()[4:]  # some share their beginnings
    info = driver.executor.info
    requests = [
        make_requests(
            check_ids(
                prompt,
                PARAMS.with_changes(max_tokens=i % 12),
                vocab_size=info.vocab_size,
                max_model_len=info.max_model_len,
            ),
            request_id=str(i),
            seed=0,
            arrival_time=0.0,
            info=info,
            config=config,
        )
        for i, prompt in enumerate(prompts)
    ]
    for together in requests:
        driver.queue(together)
    driver.run()
    assert all(len(driver.tokens[r.engine_id]) == r.max_tokens for rs in requests for r in rs)
    assert any(r.num_preemptions for rs in requests for r in rs) is setting.is_starved
    assert max(sum(g.num_scored_tokens for g in plan.grants) for plan in driver.plans) <= most_rows
    found = scores_of(driver)
    assert len(found) == len(prompts), "only the first choice of a prompt is scored"
    for together, prompt in zip(requests, prompts, strict=True):
        check(found[together[0].engine_id], prompt, model)


def make(setting: Setting, options: dict[str, Any]) -> tuple[EngineDriver, EngineConfig]:
    num_tokens = toy.STARVED_TOKENS if setting.is_starved else toy.AMPLE_TOKENS
    config = EngineConfig(
        device="cpu",
        num_gpu_blocks_override=num_tokens // setting.block_size,
        swap_space=2**-8,
        **setting.options() | options,
    )
    host = PluginHost.load(config)
    return make_driver(toy.CHECKPOINT, config, host, host.speculator), config


def scores_of(driver: EngineDriver) -> dict[str, list[TokenLogprobs]]:
    found = defaultdict(list)
    for plan, result in zip(driver.plans, driver.results, strict=True):
        for i, grant in enumerate(plan.grants if result.prompt_logprobs else ()):
            if result.prompt_logprobs[i]:
                found[grant.engine_id] += result.prompt_logprobs[i]
    return found


def check(scores: list[TokenLogprobs], prompt: tuple[int, ...], model: Any) -> None:
    with torch.inference_mode():
        logits_tv = model(torch.tensor([prompt])).logits[0, :-1]
    logprobs_tv = logits_tv.log_softmax(dim=-1)
    assert [one.token_id for one in scores] == [*prompt[1:]]
    for one, logprobs_v in zip(scores, logprobs_tv, strict=True):
        assert one.logprob == pytest.approx(float(logprobs_v[one.token_id]), abs=1e-3)
        assert one.rank == 1 + int((logprobs_v > logprobs_v[one.token_id]).sum())
        values, ids = logprobs_v.topk(3)
        assert [token_id for token_id, _ in one.top] == ids.tolist()
        assert [value for _, value in one.top] == pytest.approx(values.tolist(), abs=1e-3)
