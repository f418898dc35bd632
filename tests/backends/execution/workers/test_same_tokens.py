"""An engine with a worker process gives the same tokens as an engine without one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.backends.tiny import make_prompt
from tests.backends.tiny_checkpoints import DRAFT, TARGET, write_model
from tokenmill import AsyncEngine, SamplingParams
from tokenmill.core.errors import ConfigError
from tokenmill.core.plan import TokenLogprobs
from tokenmill.plugin import hookimpl

PARAMS = (
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=20, min_tokens=5, prompt_logprobs=1),
    SamplingParams(temperature=0, max_tokens=12, repetition_penalty=1.3, ignore_eos=True),
)
OPTIONS = {
    "dtype": "float32",
    "device": "cpu",
    "num_gpu_blocks_override": 14,
    "max_num_batched_tokens": 16,
    "swap_space": 0.01,
    "preemption_mode": "swap",
    "disable_log_stats": True,
}


async def answers_of(model: Path, **options: Any) -> list[Any]:
    async with AsyncEngine(str(model), **OPTIONS, **options) as engine:

        async def read(number: int) -> Any:
            prompt = make_prompt(5 + 7 * number, seed=number % 3)
            async for output in engine.generate(prompt, PARAMS[number % len(PARAMS)]):
                [last] = output.outputs
            return last.token_ids, last.logprobs, output.prompt_logprobs, last.finish_reason

        return list(await asyncio.gather(*map(read, range(8))))


def test_tokens_are_the_same_with_drafts_swaps_and_chunks(tmp_path: Path) -> None:
    model, draft = write_model(tmp_path / "m", TARGET, 1), write_model(tmp_path / "d", DRAFT, 2)
    options = {"speculative_model": str(draft), "num_speculative_tokens": 3}
    wanted = asyncio.run(answers_of(model, **options))
    found = asyncio.run(answers_of(model, **options, distributed_executor_backend="mp"))
    assert [tokens for tokens, *_ in found] == [tokens for tokens, *_ in wanted]
    assert [ends for *_, ends in found] == [ends for *_, ends in wanted]
    for (_, *ours, _), (_, *theirs, _) in zip(found, wanted, strict=True):
        for given, expected in zip(map(_flat, ours), map(_flat, theirs), strict=True):
            assert [ids for ids, _ in given] == [ids for ids, _ in expected]
            # The last digits depend on which requests share a step, and so on the time.
            numbers = [one for _, one in expected]
            assert [one for _, one in given] == pytest.approx(numbers, abs=1e-4)


def _flat(logprobs: Sequence[TokenLogprobs | None] | None) -> list[tuple[int, float]]:
    """Tokens and their log-probabilities, the most likely ones included."""
    known = [one for one in logprobs or () if one is not None]
    return [pair for one in known for pair in ((one.token_id, one.logprob), *one.top)]


class Wrapper:
    @hookimpl(wrapper=True)
    def propose(self) -> Any:
        return (yield)


def test_objects_that_compute_are_refused(tmp_path: Path) -> None:
    engine = AsyncEngine(
        str(write_model(tmp_path / "m", TARGET, 1)),
        plugins=[Wrapper()],
        distributed_executor_backend="multiprocess",
    )
    with pytest.raises(ConfigError, match="cannot rebuild the wrapper around 'propose' of the obj"):
        asyncio.run(engine.start())
