"""Measures the time to first token of long prompts, and what helps.

python benchmarks/long_prompts.py --help

The model has 0.2 billion random weights and a context of 32,768 tokens: speed does not depend on
the weights. Each setting runs in a process of its own. It computes a prompt of each length, and
then the same prompt with another end, which finds the beginning in the prefix cache. In the second
part, a long prompt arrives while another answer is generated: the pauses of that answer count.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import torch
from gguf import GGMLQuantizationType as Kind
from random_models import Shape, write_gguf
from recording import make_parser, make_table, percentile, record
from rich.console import Console

from tokenmill import AsyncEngine, SamplingParams

SHAPE = Shape(
    hidden=768,
    inner=2048,
    layers=24,
    heads=12,
    kv_heads=4,
    head_size=64,
    vocabulary=32768,
    context=32768,
)
END_TOKENS = 64
"""Tokens of the end of a prompt that differs."""
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one process measures."""

    kind: str = "Q4_K"
    threads: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    runs_beside: bool = False
    """Measure a long prompt beside another answer."""


SETTINGS = {
    "bfloat16": Setting(kind="BF16"),
    "4 bits": Setting(),
    "4 bits, 1 thread": Setting(threads=1),
    "4 bits, --max-num-batched-tokens 2048": Setting(options={"max_num_batched_tokens": 2048}),
    "beside an answer": Setting(runs_beside=True),
    "beside an answer, --long-prefill-token-threshold 64": Setting(
        runs_beside=True, options={"long_prefill_token_threshold": 64}
    ),
}


async def first_token(engine: AsyncEngine, prompt: Sequence[int]) -> float:
    """Seconds until the first token."""
    begin = time.perf_counter()
    async for _ in engine.generate(prompt, SamplingParams(max_tokens=1, ignore_eos=True)):
        break
    return time.perf_counter() - begin


async def alone(engine: AsyncEngine, prompt: list[int], rng: random.Random) -> Figures:
    """Time of a prompt, CPU time of all threads, and time of the same one with another end."""
    cpu = time.process_time()
    fresh = await first_token(engine, prompt)
    cpu = time.process_time() - cpu
    other = [*prompt[:-END_TOKENS], *make_prompt(rng, END_TOKENS)]
    return {"ttft": fresh, "cpu": cpu, "ttft_cached": await first_token(engine, other)}


async def beside(engine: AsyncEngine, prompt: list[int], rng: random.Random) -> Figures:
    """Time of a prompt that arrives beside an answer, and the pauses of this answer meanwhile."""
    times: list[float] = []
    params = SamplingParams(max_tokens=8000, ignore_eos=True)
    has_begun = asyncio.Event()

    async def answer() -> None:
        async for _ in engine.generate(make_prompt(rng, 32), params):
            times.append(time.perf_counter())
            has_begun.set()

    task = asyncio.create_task(answer())
    await has_begun.wait()
    begin = time.perf_counter()
    ttft = await first_token(engine, prompt)
    end = begin + ttft
    task.cancel()
    during = [begin, *(moment for moment in times if begin < moment < end), end]
    pauses = [later - earlier for earlier, later in pairwise(during)]
    return {"ttft": ttft, "pause_p50": percentile(pauses, 0.5), "pause_max": max(pauses)}


def make_prompt(rng: random.Random, length: int) -> list[int]:
    return rng.choices(range(256, SHAPE.vocabulary), k=length)


async def measure(
    setting: Setting, model: Path, lengths: Sequence[int], seed: int
) -> dict[int, Figures]:
    rng, found = random.Random(seed), {}
    kv_tokens = 2 * max(lengths) + 16384
    kv_bytes = kv_tokens * SHAPE.layers * SHAPE.kv_heads * SHAPE.head_size * 2 * 2
    async with AsyncEngine(
        str(model),
        dtype="bfloat16" if setting.kind == "BF16" else "auto",
        kv_cache_memory=kv_bytes,
        disable_log_stats=True,
        **setting.options,
    ) as engine:
        await first_token(engine, make_prompt(rng, 300))  # warms up
        for length in lengths:
            one = beside if setting.runs_beside else alone
            found[length] = await one(engine, make_prompt(rng, length), rng)
    return found


def run(
    setting: Setting, model: Path, lengths: Sequence[int], seed: int
) -> tuple[dict[int, Figures], int]:
    """What the process of a setting does. Also returns its number of threads."""
    if setting.threads is not None:
        torch.set_num_threads(setting.threads)
    found = asyncio.run(measure(setting, model, lengths, seed))
    return found, torch.get_num_threads()


def show(results: Mapping[str, Mapping[int, Figures]]) -> None:
    table = make_table(
        "setting", "prompt", "TTFT", "CPU time", "prefix cached", "pause p50", "pause max"
    )
    for name, by_length in results.items():
        for length, figures in by_length.items():
            keys = ("ttft", "cpu", "ttft_cached", "pause_p50", "pause_max")
            cells = [f"{figures[key]:.2f} s" if key in figures else "" for key in keys]
            table.add_row(name, f"{length:,}", *cells)
    Console(width=120).print(table)


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[4000, 16000], help="tokens of the prompts"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    results: dict[str, Mapping[int, Figures]] = {}
    threads, loads = {}, {}
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        models = {kind: Path(folder, f"{kind}.gguf") for kind in ("BF16", "Q4_K")}
        for kind, path in models.items():
            write_gguf(path, SHAPE, Kind[kind], args.seed)
        for name, setting in SETTINGS.items():
            print(f"{name} ...", flush=True)
            loads[name] = psutil.getloadavg()[0]
            with context.Pool(1) as pool:
                results[name], threads[name] = pool.apply(
                    run, (setting, models[setting.kind], args.lengths, args.seed)
                )
    show(results)
    record(
        args, "long_prompts", {"seconds": results, "threads": threads, "load_at_the_start": loads}
    )


if __name__ == "__main__":
    main()
