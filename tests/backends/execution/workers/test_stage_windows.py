"""Stages of models whose layers have different windows give the same tokens as one process."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.backends.tiny import make_prompt
from tests.backends.tiny_checkpoints import make_tokenizer
from tests.oracle.architectures import MODELS, WINDOW
from tokenmill import AsyncEngine, SamplingParams
from tokenmill.api.cli import main
from tokenmill.core.errors import ConfigError
from tokenmill.plugin import Preempted, StepDone, hookimpl

from .test_same_tokens import PARAMS

LONGEST = 54 + 40
"""Tokens of the longest request: several windows."""
NUM_BLOCKS = {"gemma3": 48, "gpt-oss": 16, "qwen2, a window in two layers": 16}
"""Room for two of the longest requests, in blocks that hold a group of layers."""
NGRAM = {
    "speculative_method": "ngram",
    "num_speculative_tokens": 3,
    "speculative_adaptive": False,
    "speculative_config": {"prompt_lookup_min": 1},
}
HALVES = "qwen2, a window in two layers"
"""Its first two layers have no window. With two stages, each has the layers of one group only."""


class Watcher:
    """An observer that counts preemptions by mode, prefix hits and accepted drafts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @hookimpl
    def on_step(self, event: StepDone) -> None:
        self.counts["hits"] += event.prefix_cache_hits
        self.counts["accepted"] += event.num_accepted_tokens

    @hookimpl
    def on_preempted(self, event: Preempted) -> None:
        self.counts[event.mode] += 1


def write(name: str, path: Path) -> Path:
    model = MODELS[name].make()
    model.save_pretrained(path)
    make_tokenizer(model.config.vocab_size).save(str(path / "tokenizer.json"))
    return path


async def serve(model: Path, watcher: Watcher, **options: Any) -> list[tuple[int, ...]]:
    """Tokens of greedy and seeded requests. The last one finds its prompt in the prefix cache."""
    common = {"dtype": "float32", "device": "cpu", "max_num_batched_tokens": 16, "watermark": 0.0}
    async with AsyncEngine(
        str(model), plugins=[watcher], swap_space=0.01, disable_log_stats=True, **common, **options
    ) as engine:

        async def read(number: int) -> tuple[int, ...]:
            prompt = make_prompt(5 + 7 * number, seed=number % 3)
            async for output in engine.generate(prompt, PARAMS[number % len(PARAMS)]):
                [last] = output.outputs
            return tuple(last.token_ids)

        found = list(await asyncio.gather(*map(read, range(8))))
        return [*found, await read(7), await read(7)]


check = pytest.mark.check


@pytest.mark.parametrize(
    ("name", "stages", "size", "options"),
    [
        (HALVES, 2, 1, NGRAM | {"preemption_mode": "swap"}),
        pytest.param("gemma3", 2, 1, NGRAM | {"preemption_mode": "swap"}, marks=check),
        pytest.param("gemma3", 3, 1, {"attention_backend": "torch"}, marks=check),
        pytest.param("gemma3", 2, 2, {"preemption_mode": "swap"}, marks=check),
        pytest.param("gpt-oss", 2, 1, {"preemption_mode": "swap"}, marks=check),
        pytest.param("gpt-oss", 4, 1, NGRAM, marks=check),
        pytest.param("gpt-oss", 2, 2, NGRAM | {"attention_backend": "torch"}, marks=check),
        pytest.param(HALVES, 4, 1, {}, marks=check),
    ],
)
def test_tokens_are_the_same_when_memory_is_short(
    tmp_path: Path, name: str, stages: int, size: int, options: dict[str, Any]
) -> None:
    model, mode = write(name, tmp_path / "m"), options.get("preemption_mode", "recompute")
    options = options | {"num_gpu_blocks_override": NUM_BLOCKS[name], "preemption_mode": mode}
    wanted = asyncio.run(serve(model, Watcher(), **options))
    assert max(map(len, wanted)) == 40 and LONGEST > 3 * WINDOW
    ranks = {"pipeline_parallel_size": stages, "tensor_parallel_size": size}
    watcher = Watcher()
    assert asyncio.run(serve(model, watcher, **options, **ranks)) == wanted
    assert watcher.counts[mode] > 0 and watcher.counts["hits"] > 0
    assert (watcher.counts["accepted"] > 0) is ("speculative_method" in options)


@check
@pytest.mark.parametrize("name", ["gemma3", HALVES])
def test_a_draft_model_shares_the_blocks_of_all_stages(tmp_path: Path, name: str) -> None:
    """Then all layers are one group. The model drafts for itself."""
    model = write(name, tmp_path / "m")
    options = {"speculative_model": str(model), "num_gpu_blocks_override": 14}
    wanted = asyncio.run(serve(model, Watcher(), **options))
    watcher = Watcher()
    assert asyncio.run(serve(model, watcher, **options, pipeline_parallel_size=2)) == wanted
    assert watcher.counts["accepted"] > 0 and watcher.counts["recompute"] > 0


@check
def test_a_draft_model_that_the_last_stage_refuses_is_refused(tmp_path: Path) -> None:
    model = write("gpt-oss", tmp_path / "m")
    options = {"speculative_model": str(tmp_path), "pipeline_parallel_size": 2, "device": "cpu"}
    with pytest.raises(ConfigError, match=str(tmp_path)):
        asyncio.run(AsyncEngine(str(model), **options).start())


@check
@pytest.mark.parametrize("name", ["gemma3", "gpt-oss", "smollm3, windows"])
@pytest.mark.parametrize("stages", [2, 3])
def test_stages_in_bfloat16_have_the_logprobs_of_one_stage_to_the_last_bit(
    tmp_path: Path, name: str, stages: int
) -> None:
    """A step of a stage is one native call there."""
    model = str(write(name, tmp_path / "m"))
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, prompt_logprobs=0)

    async def answer(num_stages: int) -> Any:
        options = {"device": "cpu", "dtype": "bfloat16", "num_gpu_blocks_override": 64}
        async with AsyncEngine(
            model, max_num_batched_tokens=64, pipeline_parallel_size=num_stages, **options
        ) as engine:
            outputs = [output async for output in engine.generate(range(1, 90), params)]
        return outputs[-1].outputs[0].token_ids, outputs[0].prompt_logprobs

    tokens, logprobs = asyncio.run(answer(1))
    assert len(tokens) == 20 and len(logprobs) == 89
    assert asyncio.run(answer(stages)) == (tokens, logprobs)


@check  # commands/model/test_inspect.py has the report, without ranks to compare it with
@pytest.mark.parametrize("name", [HALVES, "gemma3"])
def test_inspect_describes_the_blocks_that_the_stages_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    model = write(name, tmp_path / "m")
    flags = ["--device", "cpu", "--dtype", "float32", "--json", "--pipeline-parallel-size", "2"]
    assert main(["model", "inspect", str(model), *flags]) == 0
    report = json.loads(capsys.readouterr().out)

    async def info() -> Any:
        options = {"device": "cpu", "dtype": "float32", "num_gpu_blocks_override": 64}
        async with AsyncEngine(str(model), pipeline_parallel_size=2, **options) as engine:
            return engine.info

    found = asyncio.run(info())
    assert found.kv_bytes_per_block == sum(one["kv_per_block"] for one in report["ranks"])
    per_token = found.kv_bytes_per_block // found.block_size
    assert report["kv_bytes_per_token"] == per_token * len(found.kv_windows)
    kept = report["kept_kv_bytes_per_token"]
    assert kept == per_token * found.kv_windows.count(None) < report["kv_bytes_per_token"]
