"""Measures the effect of a step's token budget on prompt throughput and on running answers.

python benchmarks/token_budget.py --help

There is one engine per budget (--max-num-batched-tokens). All run in one process, take turns, and
use the chunked scheduler. In a round each engine computes a batch of long prompts, then the load of
mixed_load.py: long prompts that arrive among running answers.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from mixed_load import Arrival, add_load_flags, condense, make_load, serve
from recording import (
    add_model_flags,
    make_parser,
    make_table,
    record,
    set_threads,
    summarize_all,
)
from rich.console import Console

from tokenmill import AsyncEngine, SamplingParams

FIGURES = {
    "prompt_throughput": "prompt tokens/s",
    "itl_p50": "ITL p50, ms",
    "itl_p99": "ITL p99, ms",
    "long_ttft_p50": "TTFT p50 of long prompts, ms",
}
Rounds = dict[int, dict[str, list[float]]]


async def measure(args: argparse.Namespace) -> Rounds:
    """All figures of all rounds, by budget. The order of budgets alternates by round."""
    rounds: Rounds = {budget: {figure: [] for figure in FIGURES} for budget in args.budgets}
    async with AsyncExitStack() as stack:
        engines = {
            budget: await stack.enter_async_context(make_engine(args, budget))
            for budget in args.budgets
        }
        load = make_load(args, engines[args.budgets[0]].info.vocab_size)
        for turn in range(args.rounds + 1):
            for budget in args.budgets if turn % 2 else args.budgets[::-1]:
                figures = await measure_once(engines[budget], load)
                print(f"round {turn}: budget {budget}: {figures['seconds']:.1f} s", flush=True)
                if turn:  # the first one warms up
                    for figure in FIGURES:
                        rounds[budget][figure].append(figures[figure])
    return rounds


def make_engine(args: argparse.Namespace, budget: int) -> AsyncEngine:
    """An engine with this budget. Its KV cache is small, because all engines share the memory."""
    return AsyncEngine(
        args.model,
        dtype=args.dtype,
        scheduler="chunked",
        max_num_batched_tokens=budget,
        kv_cache_memory=256 * 2**20,
        swap_space=0.0,
        enable_prefix_caching=False,  # every round repeats the prompts
        disable_log_stats=True,
    )


async def measure_once(engine: AsyncEngine, load: Sequence[Arrival]) -> dict[str, float]:
    """All figures of one engine in one round."""
    long = [arrival.prompt for arrival in load if arrival.is_long]
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for prompt in long:
            group.create_task(compute(engine, prompt))
    throughput = sum(map(len, long)) / (time.perf_counter() - begin)
    return {"prompt_throughput": throughput, **condense(*await serve(engine, load))}


async def compute(engine: AsyncEngine, prompt: list[int]) -> None:
    """Compute a prompt and one token."""
    async for _ in engine.generate(prompt, SamplingParams(max_tokens=1)):
        pass


def show(summary: dict[int, dict[str, dict[str, float]]]) -> None:
    """Print the medians."""
    table = make_table("median of the rounds", *(f"budget {budget}" for budget in summary))
    for figure, title in FIGURES.items():
        table.add_row(title, *(f"{found[figure]['median']:.0f}" for found in summary.values()))
    Console().print(table)


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_model_flags(parser)
    parser.add_argument(
        "--budgets", type=int, nargs="+", default=[128, 256, 512, 2048], help="tokens per step"
    )
    add_load_flags(parser)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each budget")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    set_threads(args)
    summary = summarize_all(asyncio.run(measure(args)))
    show(summary)
    record(args, "token_budget", {"budgets": summary})


if __name__ == "__main__":
    main()
