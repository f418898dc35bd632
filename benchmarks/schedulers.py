"""Compares the schedulers chunked and prefill-first: long prompts arrive among running answers.

python benchmarks/schedulers.py --help

Both schedulers get the same arrivals (mixed_load.py) and the same token budget per step. Their
engines run in one process and take turns.
"""

from __future__ import annotations

import argparse
import asyncio

from mixed_load import add_load_flags, condense, make_load, serve
from recording import (
    add_model_flags,
    make_parser,
    make_table,
    record,
    set_threads,
    summarize_all,
)
from rich.console import Console

from tokenmill import AsyncEngine

SCHEDULERS = ("prefill-first", "chunked")
FIGURES = {
    "itl_p50": "ITL p50",
    "itl_p99": "ITL p99",
    "itl_max": "longest gap",
    "long_ttft_p50": "TTFT p50, long",
    "long_ttft_p99": "TTFT p99, long",
    "short_ttft_p50": "TTFT p50, short",
    "seconds": "whole load",
}


async def measure(args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """All figures of all rounds, by scheduler. The order of schedulers alternates by round."""
    rounds: dict[str, dict[str, list[float]]] = {
        name: {figure: [] for figure in FIGURES} for name in SCHEDULERS
    }
    options = {
        "dtype": args.dtype,
        "max_num_batched_tokens": args.max_num_batched_tokens,
        "enable_prefix_caching": False,  # every round repeats the prompts
        "disable_log_stats": True,
    }
    async with (
        AsyncEngine(args.model, scheduler=SCHEDULERS[0], **options) as first,
        AsyncEngine(args.model, scheduler=SCHEDULERS[1], **options) as second,
    ):
        engines = dict(zip(SCHEDULERS, (first, second), strict=True))
        load = make_load(args, first.info.vocab_size)
        for name, engine in engines.items():
            print(f"warming up: {name}", flush=True)
            await serve(engine, [load[0], load[-1]])
        for turn in range(args.rounds):
            for name in SCHEDULERS if turn % 2 == 0 else SCHEDULERS[::-1]:
                figures = condense(*await serve(engines[name], load))
                for figure, value in figures.items():
                    rounds[name][figure].append(value)
                print(f"round {turn + 1}: {name}: {figures['seconds']:.1f} s", flush=True)
    return rounds


def show(summary: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print the medians, and the ratio of the second scheduler to the first."""
    table = make_table("median of the rounds", *SCHEDULERS, "ratio")
    for figure, title in FIGURES.items():
        first, second = (summary[name][figure]["median"] for name in SCHEDULERS)
        shown = (f"{v:.1f} s" if figure == "seconds" else f"{v:.0f} ms" for v in (first, second))
        table.add_row(title, *shown, f"{second / first:.2f}")
    Console().print(table)


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_model_flags(parser)
    add_load_flags(parser)
    parser.add_argument(
        "--max-num-batched-tokens", type=int, default=256, help="maximum tokens in one step"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each scheduler")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    set_threads(args)
    summary = summarize_all(asyncio.run(measure(args)))
    show(summary)
    record(args, "schedulers", {"milliseconds": summary})


if __name__ == "__main__":
    main()
