"""Ranks that divide a model's experts give the tokens of transformers."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.backends.tiny_checkpoints import TARGET, make_tokenizer, write_model
from tests.oracle import toy
from tests.oracle.architectures import MODELS
from tests.oracle.comparison import find_near_ties
from tests.oracle.reference import ReferenceCase, continue_greedily, gap
from tokenmill import AsyncEngine, SamplingParams
from tokenmill.core.errors import ConfigError
from tokenmill.core.outputs import RequestOutput
from tokenmill.plugin import StepDone, hookimpl

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "num_gpu_blocks_override": 24,
    "max_num_batched_tokens": 32,
    "speculative_method": "ngram",
    "disable_log_stats": True,
}
NUM_TOKENS = 16
soak = pytest.mark.soak


class Watcher:
    """An observer that adds up the tokens of each rank's experts."""

    def __init__(self) -> None:
        self.tokens: Counter[int] = Counter()

    @hookimpl
    def on_step(self, event: StepDone) -> None:
        self.tokens.update(dict(enumerate(event.expert_tokens)))


async def serve(
    path: Path, cases: list[ReferenceCase], watcher: Watcher, **options: Any
) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    async with AsyncEngine(str(path), plugins=[watcher], **OPTIONS, **options) as engine:

        async def read(case: ReferenceCase) -> tuple[int, ...]:
            outputs: list[RequestOutput] = [
                output async for output in engine.generate(case.prompt_token_ids, params)
            ]
            return tuple(outputs[-1].outputs[0].token_ids)

        return list(await asyncio.gather(*map(read, cases)))


@pytest.mark.parametrize(
    ("name", "size", "whole_experts"),
    [
        pytest.param("mixtral", 2, True, marks=pytest.mark.check),
        *(
            pytest.param(name, size, whole, marks=soak)
            for name in ("mixtral", "qwen3-moe", "olmoe", "gpt-oss")
            for size in (2, 4)
            for whole in (False, True)
        ),
    ],
)
def test_tokens_are_those_of_transformers(
    tmp_path: Path, name: str, size: int, whole_experts: bool
) -> None:
    made = MODELS[name]
    changes = made.changes | {"num_key_value_heads": 4}  # OLMoE needs a KV head per rank
    model = replace(made, changes=changes).make()
    model.save_pretrained(tmp_path / "m")
    make_tokenizer(model.config.vocab_size).save(str(tmp_path / "m" / "tokenizer.json"))
    prompts = toy.make_prompts()[4::2]
    outputs = continue_greedily(model, prompts, NUM_TOKENS)
    cases = [
        ReferenceCase(str(i), *case) for i, case in enumerate(zip(prompts, outputs, strict=True))
    ]
    ranks = {"tensor_parallel_size": size, "enable_expert_parallel": whole_experts}
    watcher = Watcher()
    found = asyncio.run(serve(tmp_path / "m", cases, watcher, **ranks))
    find_near_ties(partial(gap, model), cases, found)
    assert sorted(watcher.tokens) == (list(range(size)) if whole_experts else [])
    assert all(count > 0 for count in watcher.tokens.values())


@pytest.mark.check
@pytest.mark.parametrize(
    ("name", "whole_experts", "num_stages"),
    [("mixtral", False, 1), ("mixtral", True, 2), ("olmoe", True, 1), ("gpt-oss", True, 1)],
)
def test_ranks_in_bfloat16_have_nearly_the_logprobs_of_one_process(
    tmp_path: Path, name: str, whole_experts: bool, num_stages: int
) -> None:
    """A step is one native call there. A rounding may change the choice of an expert."""
    model = MODELS[name].make()
    model.save_pretrained(tmp_path / "m")
    make_tokenizer(model.config.vocab_size).save(str(tmp_path / "m" / "tokenizer.json"))
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    prompt = list(range(1, 90))
    watcher = Watcher()

    async def logprobs(**ranks: Any) -> list[float]:
        options = OPTIONS | {"dtype": "bfloat16", "max_num_batched_tokens": 64} | ranks
        async with AsyncEngine(str(tmp_path / "m"), plugins=[watcher], **options) as engine:
            [output] = [output async for output in engine.generate(prompt, params)]
        return [one.logprob for one in output.prompt_logprobs or () if one is not None]

    alone = asyncio.run(logprobs())
    assert len(alone) == len(prompt) - 1
    ranks = {"tensor_parallel_size": 2, "enable_expert_parallel": whole_experts}
    found = asyncio.run(logprobs(**ranks, pipeline_parallel_size=num_stages))
    assert fmean(abs(a - b) for a, b in zip(found, alone, strict=True)) < 0.1
    pairs = len(prompt) * model.config.num_experts_per_tok * model.config.num_hidden_layers
    assert sum(watcher.tokens.values()) == (pairs if whole_experts else 0)


def test_expert_parallelism_of_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", TARGET, 1)
    engine = AsyncEngine(str(model), device="cpu", enable_expert_parallel=True)
    with pytest.raises(ConfigError, match="--enable-expert-parallel: LlamaForCausalLM has no exp"):
        asyncio.run(engine.start())
