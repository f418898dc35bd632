"""Several ranks compute one model, and give the same tokens as one process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.backends.tiny_checkpoints import TARGET, write_model
from tests.core.processes.test_child import wait_until_gone
from tests.test_worker_restarts import ranks_of
from tokenmill import AsyncEngine, SamplingParams
from tokenmill.backends.models.bridge.bridge import TransformersModels
from tokenmill.core.errors import ConfigError, EngineStoppedError
from tokenmill.core.plan import TokenLogprobs

from .test_same_tokens import answers_of

UNEVEN = replace(TARGET, num_heads=6, num_kv_heads=3, head_size=16)


def logprobs_of(entries: Sequence[TokenLogprobs] | None) -> list[float]:
    """The chosen tokens' logprobs. Ranks add up in another order, so the last digits may differ."""
    return [one.logprob for one in entries or ()]


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(2, marks=pytest.mark.check),
        pytest.param(3, marks=pytest.mark.soak),
        pytest.param(4, marks=pytest.mark.soak),
    ],
)
def test_tokens_are_the_same_with_heads_divided_unevenly(tmp_path: Path, size: int) -> None:
    model = write_model(tmp_path / "m", UNEVEN, 1)
    options = {"speculative_method": "ngram"}
    wanted = asyncio.run(answers_of(model, **options))
    found = asyncio.run(answers_of(model, **options, tensor_parallel_size=size))
    assert [tokens for tokens, *_ in found] == [tokens for tokens, *_ in wanted]
    for (_, own, *_), (_, other, *_) in zip(found, wanted, strict=True):
        assert logprobs_of(own) == pytest.approx(logprobs_of(other), abs=1e-4)


@pytest.mark.check
def test_three_ranks_in_bfloat16_have_nearly_the_logprobs_of_one_process(tmp_path: Path) -> None:
    """A step is one native call there."""
    model = str(write_model(tmp_path / "m", UNEVEN, 1))
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    prompt = list(range(1, 90))

    async def logprobs(size: int) -> list[float]:
        options = {"device": "cpu", "dtype": "bfloat16", "num_gpu_blocks_override": 64}
        async with AsyncEngine(model, tensor_parallel_size=size, **options) as engine:
            [output] = [output async for output in engine.generate(prompt, params)]
        return [one.logprob for one in output.prompt_logprobs or () if one is not None]

    alone = asyncio.run(logprobs(1))
    assert len(alone) == len(prompt) - 1
    assert asyncio.run(logprobs(3)) == pytest.approx(alone, abs=0.1)


@pytest.mark.check
def test_tokens_of_a_model_of_transformers_are_the_same(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", TARGET, 1)
    options = {"model_impl": "transformers", "speculative_method": "ngram"}
    wanted = asyncio.run(answers_of(model, **options))
    found = asyncio.run(answers_of(model, **options, tensor_parallel_size=2))
    assert [tokens for tokens, *_ in found] == [tokens for tokens, *_ in wanted]


def test_a_model_of_an_implementation_that_cannot_divide_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransformersModels, "is_divisible", False)
    model = str(write_model(tmp_path / "m", TARGET, 1))
    engine = AsyncEngine(model, device="cpu", tensor_parallel_size=2, model_impl="transformers")
    with pytest.raises(ConfigError, match=r"'transformers' .* cannot divide it"):
        asyncio.run(engine.start())


def affinities_of(pid: int) -> list[set[int]]:
    """The CPUs of each thread of a process."""
    return [os.sched_getaffinity(int(one.name)) for one in Path(f"/proc/{pid}/task").iterdir()]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system cannot bind")
def test_a_worker_process_computes_on_the_cpus_that_are_named_for_it(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "m", UNEVEN, 1))
    cpu = max(os.sched_getaffinity(0))
    params = SamplingParams(temperature=0, max_tokens=2)

    others = set(ranks_of(os.getpid()))  # of other tests in this process

    async def read_affinities() -> list[set[int]]:
        async with AsyncEngine(model, device="cpu", cpu_bind=str(cpu)) as engine:
            assert [_ async for _ in engine.generate([1, 2, 3], params)]
            [worker] = set(ranks_of(os.getpid())) - others
            return affinities_of(worker)

    affinities = asyncio.run(read_affinities())
    assert sum(found == {cpu} for found in affinities) >= len(affinities) - 2, (
        "all but those that watch the parent and import libraries"
    )


@pytest.mark.check
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_ranks_that_wait_for_a_lost_one_are_ended(tmp_path: Path, fault: signal.Signals) -> None:
    model = str(write_model(tmp_path / "m", UNEVEN, 1))
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)

    others = set(ranks_of(os.getpid()))  # of other tests in this process

    async def lose_a_rank() -> None:
        options = {"device": "cpu", "dtype": "bfloat16", "num_gpu_blocks_override": 64}
        async with AsyncEngine(model, tensor_parallel_size=2, **options) as engine:
            ranks = [pid for pid in ranks_of(os.getpid()) if pid not in others]
            assert len(ranks) == 2
            outputs = engine.generate([1, 2, 3], params)
            await anext(outputs)
            os.kill(ranks[1], fault)
            with pytest.raises(EngineStoppedError):
                _ = [output async for output in outputs]
            wait_until_gone(ranks)

    asyncio.run(asyncio.wait_for(lose_a_rank(), 60))
