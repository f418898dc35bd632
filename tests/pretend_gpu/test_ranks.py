"""Ranks and stages with a GPU each give the tokens of one process.

What computes is in `make check`: each rank is a process whose operations all go through Python, and
uses 5 CPU seconds.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.backends.execution.workers.test_stage_windows import write
from tests.backends.tiny import make_prompt
from tests.backends.tiny_checkpoints import TARGET, make_tokenizer, write_model
from tests.oracle.architectures import MODELS
from tokenmill import AsyncEngine, SamplingParams
from tokenmill.backends.machine.places import GPUS
from tokenmill.core.errors import ConfigError

MODEL = replace(TARGET, num_heads=6, num_kv_heads=3)
PARAMS = (
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.9, top_p=0.9, top_k=40, seed=3, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=12, min_tokens=5, prompt_logprobs=1),
    SamplingParams(temperature=0, max_tokens=12, repetition_penalty=1.3, ignore_eos=True),
)
OPTIONS = {
    "dtype": "float32",
    "attention_backend": "torch",
    "linear_backend": "torch",
    "max_num_batched_tokens": 32,
    "disable_log_stats": True,
}
SMALL = {"num_gpu_blocks_override": 14, "swap_space": 0.01, "preemption_mode": "swap"}


async def tokens_of(model: Path, **options: Any) -> list[Any]:
    async with AsyncEngine(str(model), **OPTIONS | options) as engine:

        async def read(number: int) -> Any:
            prompt = make_prompt(5 + 7 * number, seed=number % 3)
            async for output in engine.generate(prompt, PARAMS[number % len(PARAMS)]):
                [last] = output.outputs
            return last.token_ids

        return list(await asyncio.gather(*map(read, range(8))))


def greedy(tokens: list[Any]) -> list[Any]:
    """The tokens of the greedy requests."""
    params = itertools.cycle(PARAMS)
    return [one for one, its in zip(tokens, params, strict=False) if not its.temperature]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "m", MODEL, 1)


@pytest.fixture(scope="module")
def wanted(model: Path, gpus: None) -> list[Any]:
    """The tokens that one process computes on a GPU. Greedy ones are also those of a CPU: there,
    only the formula that draws tokens differs."""
    found = asyncio.run(tokens_of(model, device="cuda", distributed_executor_backend="mp"))
    on_cpu = asyncio.run(tokens_of(model, device="cpu"))
    assert greedy(found) == greedy(on_cpu)
    return found


@pytest.mark.check
@pytest.mark.parametrize(
    "sizes",
    [
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, **SMALL},
        {"pipeline_parallel_size": 3, "speculative_method": "ngram", **SMALL},
    ],
    ids=["tp2", "pp2", "tp2-pp2-swap", "pp3-ngram-swap"],
)
def test_ranks_on_gpus_give_the_tokens_of_one_process(
    model: Path, wanted: list[Any], sizes: dict[str, Any]
) -> None:
    assert asyncio.run(tokens_of(model, device="cuda", **sizes)) == wanted


@pytest.mark.check
@pytest.mark.usefixtures("gpus")
def test_experts_on_gpus_give_the_tokens_of_a_cpu(tmp_path: Path) -> None:
    made = MODELS["mixtral"].make()
    made.save_pretrained(tmp_path / "m")
    make_tokenizer(made.config.vocab_size).save(str(tmp_path / "m" / "tokenizer.json"))
    sizes = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    found = asyncio.run(tokens_of(tmp_path / "m", device="cuda", **sizes))
    on_cpu = asyncio.run(tokens_of(tmp_path / "m", device="cpu"))
    assert greedy(found) == greedy(on_cpu)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("executor", ["multiprocess", "ray"])
def test_each_rank_needs_a_gpu(model: Path, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GPUS, "2,3,4")
    engine = AsyncEngine(
        str(model),
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        device="cuda",
        distributed_executor_backend=executor,
    )
    with pytest.raises(ConfigError, match="needs 4 GPUs, but 3 are visible"):
        asyncio.run(engine.start())


@pytest.mark.usefixtures("gpus")
def test_one_gpu_by_its_number_is_refused_for_several_ranks(model: Path) -> None:
    engine = AsyncEngine(str(model), tensor_parallel_size=2, device="cuda:1")
    with pytest.raises(ConfigError, match="--device cuda:1 is a single device, but 2 processes"):
        asyncio.run(engine.start())


@pytest.mark.check
@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    "sizes",
    [
        {"pipeline_parallel_size": 2},
        {"pipeline_parallel_size": 4, "num_gpu_blocks_override": 20, "swap_space": 0.01},
    ],
    ids=["pp2", "pp4"],
)
def test_stages_with_different_windows_give_the_tokens_of_one_process(
    tmp_path: Path, sizes: dict[str, Any]
) -> None:
    """With four stages, each has a layer of one of the two groups."""
    model = write("gpt-oss", tmp_path / "m")
    wanted = asyncio.run(tokens_of(model, device="cuda", distributed_executor_backend="mp"))
    assert asyncio.run(tokens_of(model, device="cuda", **sizes)) == wanted
