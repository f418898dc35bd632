"""The default model in float32 gives the same tokens with every executor; else, nearly the same
logprobs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tokenmill import AsyncEngine, SamplingParams
from tokenmill.core.requests.grammar import Grammar

pytestmark = pytest.mark.check

PARAMS = (
    SamplingParams(temperature=0, max_tokens=32),
    SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=32),
    SamplingParams(
        temperature=0, max_tokens=32, grammar=Grammar(kind="regex", text="(yes|no), [a-z ]+[.]")
    ),
)
PROMPTS = ("The capital of France is", "def quicksort(a):", "Is water wet?", "Once upon a time")


async def answers(**options: Any) -> list[tuple[int, ...]]:
    async with AsyncEngine(
        dtype="float32", device="cpu", num_gpu_blocks_override=64, disable_log_stats=True, **options
    ) as engine:

        async def read(prompt: str, params: SamplingParams) -> tuple[int, ...]:
            async for output in engine.generate(prompt, params):
                [last] = output.outputs
            return tuple(last.token_ids)

        return list(await asyncio.gather(*(read(p, q) for p in PROMPTS for q in PARAMS)))


def test_worker_processes_ranks_and_stages_give_the_tokens_of_one_process() -> None:
    wanted = asyncio.run(answers())
    assert asyncio.run(answers(distributed_executor_backend="multiprocess")) == wanted
    assert asyncio.run(answers(tensor_parallel_size=2)) == wanted
    assert asyncio.run(answers(tensor_parallel_size=2, attention_backend="torch")) == wanted
    assert asyncio.run(answers(pipeline_parallel_size=2, speculative_method="ngram")) == wanted


async def prompt_logprobs(**options: Any) -> list[float]:
    """The logprobs of a prompt's tokens."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    async with AsyncEngine(
        device="cpu", num_gpu_blocks_override=64, disable_log_stats=True, **options
    ) as engine:
        prompt = "The quick brown fox jumps over the lazy dog"
        [output] = [output async for output in engine.generate(prompt, params)]
    return [one.logprob for one in output.prompt_logprobs or () if one is not None]


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.15), ("auto", 1.0)])
def test_two_ranks_have_nearly_the_logprobs_of_one_process(dtype: str, tolerance: float) -> None:
    """Quantized products round their inputs to int8: another order of additions changes the
    logprobs as much as another instruction set does."""
    alone = asyncio.run(prompt_logprobs(dtype=dtype))
    assert len(alone) > 5
    found = asyncio.run(prompt_logprobs(dtype=dtype, tensor_parallel_size=2))
    assert found == pytest.approx(alone, abs=tolerance)
