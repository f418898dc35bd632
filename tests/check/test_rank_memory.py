"""`model inspect` describes the memory that ranks really use, at 1, 2 and 4 ranks."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.backends.tiny_checkpoints import TARGET, write_model
from tokenmill import AsyncEngine, SamplingParams
from tokenmill.api.cli import main

pytestmark = pytest.mark.check

NUM_BLOCKS, NUM_REQUESTS = 65, 64
MODEL = replace(TARGET, hidden_size=512, intermediate_size=16384)
"""144 MiB of weights."""
NOISE = 96 << 20
"""Above what the allocator leaves behind while weights are loaded: up to 76 MiB were seen. One of
four ranks that kept the whole model would have 108 MiB too much."""
OPTIONS = {
    "dtype": "bfloat16",  # the file has float32, so no weight stays in the mapped file
    "linear_backend": "torch",
    "device": "cpu",
    "num_gpu_blocks_override": NUM_BLOCKS,
    "max_num_seqs": NUM_REQUESTS,
    "enable_prefix_caching": False,
    "distributed_executor_backend": "multiprocess",
}
PARAMS = SamplingParams(temperature=0.9, top_p=0.9, seed=1, logprobs=5, max_tokens=3)


def inspect(capsys: pytest.CaptureFixture[str], model: Path, size: int) -> Any:
    flags = [
        str(model),
        "--dtype",
        "bfloat16",
        "--linear-backend",
        "torch",
        "--device",
        "cpu",
        "--max-num-seqs",
        str(NUM_REQUESTS),
    ]
    assert main(["model", "inspect", *flags, "--tensor-parallel-size", str(size), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """A worker's memory in bytes."""

    loaded: int
    """After the weights are loaded, without mapped files."""
    growth: int
    """Peak in full steps, compared with the time between steps."""


async def run(model: Path, size: int) -> list[Usage]:
    """The memory of each rank."""
    others = psutil.Process().children()  # of other tests in this process
    async with AsyncEngine(str(model), **OPTIONS, tensor_parallel_size=size) as engine:

        async def ask(number: int) -> None:
            async for _ in engine.generate([number] * 4, PARAMS):
                pass

        async def fill_steps() -> None:
            await asyncio.gather(*map(ask, range(NUM_REQUESTS)))

        workers = [one for one in psutil.Process().children() if one not in others]
        loaded = [memory.rss - memory.shared for memory in (one.memory_info() for one in workers)]
        for _ in range(2):
            await fill_steps()  # every KV block is written, and libraries have their buffers
        resting = [worker.memory_info().rss for worker in workers]
        for worker in workers:
            reset_peak(worker.pid)
        await fill_steps()
        growth = [peak(one.pid) - rss for one, rss in zip(workers, resting, strict=True)]
    return [Usage(loaded=one, growth=two) for one, two in zip(loaded, growth, strict=True)]


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [one for one in lines if one.startswith("VmHWM:")]
    return int(line.split()[1]) << 10


def test_ranks_use_the_memory_that_inspect_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model, others = write_model(tmp_path / "m", MODEL, 1), []
    for size in (1, 2, 4):
        ranks = inspect(capsys, model, size)["ranks"]
        caplog.clear()
        with caplog.at_level(logging.INFO, "tokenmill"):
            usage = asyncio.run(run(model, size))
        logged = [one.__dict__ for one in caplog.records if one.getMessage() == "model_loaded"]
        expected = sorted((one["weights"] >> 20, _cache_mib(one)) for one in ranks)
        assert sorted((one["weights_mib"], one["kv_cache_mib"]) for one in logged) == expected
        for rank, used in zip(ranks, usage, strict=True):
            others.append(used.loaded - rank["weights"])
            assert used.growth < rank["activations"] + NOISE
    assert max(others) - min(others) < NOISE, "all that is not weights is the same in all ranks"


def _cache_mib(rank: Any) -> int:
    return int(NUM_BLOCKS * rank["kv_per_block"]) >> 20
