"""A model that raises for one request: its batch-mates still get the tokens they would have had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.backends.chosen import backends_with
from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.backends.state.input_batch import InputBatch
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import RequestFailedError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import no_progress
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.local_engine import EngineParts, local_engine
from tokenmill.testing.toy_tokenizer import ToyTokenizer

from ..tiny import CONFIG, make_prompt

BAD = CONFIG.vocab_size - 1
"""The token that the model cannot compute."""
PROMPTS = [
    [token_id % BAD for token_id in make_prompt(length, seed)]
    for seed, length in enumerate((5, 9, 16, 31, 40))
]
PARAMS = SamplingParams(max_tokens=20, seed=3, temperature=1.2, logit_bias={BAD: -100.0})


class Raising:
    """A StepModel that raises when one of the tokens that it computes is BAD."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.num_raised = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def logits(self, batch: InputBatch) -> torch.Tensor:
        if (batch.token_ids_t == BAD).any():
            self.num_raised += 1
            raise RuntimeError("planted")
        logits_rv: torch.Tensor = self._model.logits(batch)
        return logits_rv


def answers(prompts: Sequence[Sequence[int]], **options: Any) -> tuple[list[Any], int]:
    """The tokens that each prompt gets, or its exception, and the number of steps that raised.

    Prompts arrive one after the other, so that the last ones join others that are decoding.
    """
    models: list[Raising] = []

    def build(config: EngineConfig, progress: Callable[[str, float], None]) -> EngineParts:
        executor = ModelExecutor.from_checkpoint(
            random_checkpoint(CONFIG, 5), config, backends_with(TorchAttention), no_progress
        )
        models.append(Raising(executor._runner._model))  # type: ignore[union-attr]
        executor._runner._model = models[0]  # type: ignore[union-attr, assignment]
        return EngineParts(
            executor=executor, tokenizer=ToyTokenizer(), plugins=PluginHost.load(config)
        )

    async def run() -> list[Any]:
        config = EngineConfig(
            device="cpu", dtype="float32", num_gpu_blocks_override=40, disable_log_stats=True
        )
        async with local_engine(replace(config, **options), build) as engine:

            async def tokens(prompt: Sequence[int]) -> tuple[int, ...]:
                outputs = [o async for o in engine.generate(prompt, PARAMS)]
                return tuple(outputs[-1].outputs[0].token_ids)

            tasks = []
            for prompt in prompts:
                tasks.append(asyncio.create_task(tokens(prompt)))
                await asyncio.sleep(0.005)
            found = await asyncio.gather(*tasks, return_exceptions=True)
            await engine.drain()
            assert engine.load().kv_cache_usage == 0 and engine.load().is_alive
            return found

    return asyncio.run(run()), models[0].num_raised


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_only_the_request_that_the_model_cannot_compute_fails(
    async_scheduling: bool, enable_prefix_caching: bool
) -> None:
    options = {
        "async_scheduling": async_scheduling,
        "enable_prefix_caching": enable_prefix_caching,
    }
    expected, num_raised = answers(PROMPTS, **options)
    assert num_raised == 0
    bad = [*PROMPTS[2], BAD, 1, 2]
    found, num_raised = answers([*PROMPTS[:3], bad, *PROMPTS[3:]], **options)
    assert num_raised > 0
    assert isinstance(found.pop(3), RequestFailedError)
    assert found == expected
