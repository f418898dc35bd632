"""Embeddings are the hidden states of transformers, however the prompt is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tokenmill.core.config import EngineConfig
from tokenmill.core.engine.request import Request
from tokenmill.core.requests.pooling import Pooling
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.checking import check_ids
from tokenmill.core.shell.new_requests import make_requests
from tokenmill.testing.engine_driver import EngineDriver

from . import toy
from .settings import Setting
from .test_prompt_logprobs import make

SETTINGS = {
    "whole": Setting(scheduler="chunked"),
    "recompute": Setting(scheduler="chunked", is_starved=True, max_num_batched_tokens=24),
    "swap": Setting(scheduler="prefill-first", preemption_mode="swap", is_starved=True),
    "uncached": Setting(scheduler="prefill-first", enable_prefix_caching=False),
}


@pytest.fixture(scope="module")
def model() -> Any:
    return toy.make_reference()


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize("name", SETTINGS)
def test_they_are_those_of_transformers(name: str, pooling: Pooling, model: Any) -> None:
    setting = SETTINGS[name]
    driver, config = make(setting, {})
    prompts = toy.make_prompts()[4:]  # some share their beginnings
    embedding = SamplingParams(max_tokens=0, pooling=pooling)
    generating = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    requests = [
        request(driver, config, f"{kind}{i}", prompt, params)
        for i, prompt in enumerate(prompts)
        for kind, params in (("answer", generating), ("embedding", embedding))
    ]
    driver.run(requests, per_step=len(requests))
    assert any(one.num_preemptions for one in requests) is setting.is_starved
    found = sums_of(driver)
    assert found.keys() == {f"embedding{i}" for i in range(len(prompts))}
    for i, prompt in enumerate(prompts):
        count = len(prompt) if pooling is Pooling.MEAN else 1
        expected_e = reference(model, prompt, pooling)
        torch.testing.assert_close(found[f"embedding{i}"] / count, expected_e, rtol=0, atol=1e-4)


def request(
    driver: EngineDriver,
    config: EngineConfig,
    name: str,
    prompt: tuple[int, ...],
    params: SamplingParams,
) -> Request:
    info = driver.executor.info
    checked = check_ids(
        prompt, params, vocab_size=info.vocab_size, max_model_len=info.max_model_len
    )
    (made,) = make_requests(
        checked, request_id=name, seed=0, arrival_time=0.0, info=info, config=config
    )
    return made


def sums_of(driver: EngineDriver) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for plan, result in zip(driver.plans, driver.results, strict=True):
        for grant, sum_e in zip(plan.grants, result.pooled or (), strict=bool(result.pooled)):
            if sum_e:
                found[grant.engine_id] = torch.tensor(sum_e) + found.get(grant.engine_id, 0)
    return found


def reference(model: Any, prompt: tuple[int, ...], pooling: Pooling) -> torch.Tensor:
    with torch.inference_mode():
        found = model(torch.tensor([prompt]), output_hidden_states=True)
    hidden_te: torch.Tensor = found.hidden_states[-1][0]  # after the last norm
    return hidden_te.mean(dim=0) if pooling is Pooling.MEAN else hidden_te[-1]
