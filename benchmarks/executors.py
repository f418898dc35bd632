"""Measures decode steps of the same engine with other executors, in turns.

python benchmarks/executors.py --help

All engines are loaded at once. In every round each of them answers the same requests, one engine
after the other, so that a change of the machine's speed affects all of them. A contender is the
name of an executor, "tp2" for --tensor-parallel-size 2, or "pp2" for --pipeline-parallel-size 2.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

from recording import add_model_flags, make_parser, make_table, record, set_threads, summarize
from rich.console import Console

from tokenmill import AsyncEngine, OutputKind, SamplingParams


def make_engine(args: argparse.Namespace, contender: str) -> AsyncEngine:
    """An engine that was not started."""
    sizes = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size"}
    kind, number = contender[:2], contender[2:]
    is_divided = kind in sizes and number.isdecimal()
    choice: dict[str, Any] = (
        {sizes[kind]: int(number)} if is_divided else {"distributed_executor_backend": contender}
    )
    return AsyncEngine(
        args.model,
        device="cpu",
        dtype=args.dtype,
        num_gpu_blocks_override=2048,
        enable_prefix_caching=False,
        disable_log_stats=True,
        **choice,
    )


async def read(engine: AsyncEngine, args: argparse.Namespace, number: int) -> list[float]:
    """The times when one request's tokens arrive."""
    params = SamplingParams(
        temperature=0, max_tokens=args.steps, ignore_eos=True, output_kind=OutputKind.DELTA
    )
    prompt = [1000 + number] * args.prompt
    return [time.perf_counter() async for _ in engine.generate(prompt, params)]


async def milliseconds_per_step(engine: AsyncEngine, args: argparse.Namespace, batch: int) -> float:
    """Median time between two tokens of the same request, while all decode."""
    times = await asyncio.gather(*(read(engine, args, number) for number in range(batch)))
    begin = max(found[0] for found in times)
    return (
        statistics.median(b - a for found in times for a, b in pairwise(found) if a >= begin) * 1e3
    )


async def measure(args: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """By batch and contender: milliseconds per step over the rounds."""
    found: dict[str, dict[str, list[float]]] = {}
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(make_engine(args, name))
            for name in args.contenders
        }
        for number in range(args.rounds + 1):
            for batch in args.batches:
                for name, engine in engines.items():
                    value = await milliseconds_per_step(engine, args, batch)
                    if number:  # the first round warms up
                        found.setdefault(str(batch), {}).setdefault(name, []).append(value)
    return {
        batch: {name: summarize(values) for name, values in row.items()}
        for batch, row in found.items()
    }


def main() -> None:
    parser = make_parser(__doc__)
    add_model_flags(parser)
    parser.add_argument("--contenders", nargs="+", default=["inprocess", "multiprocess"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--steps", type=int, default=100, help="generated tokens per request")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    set_threads(args)
    result = asyncio.run(measure(args))
    table = make_table("ms per step", *args.contenders)
    for batch, row in result.items():
        table.add_row(f"batch {batch}", *(f"{row[name]['median']:.2f}" for name in args.contenders))
    Console().print(table)
    record(args, "executors", {"milliseconds_by_batch_and_executor": result})


if __name__ == "__main__":
    main()
