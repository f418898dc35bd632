"""Measures the time to first token after a shared system prompt, with and without prefix caching.

python benchmarks/prefix_caching.py --help

Every round has a new system prompt of 500 tokens, followed by a few questions, one after the other.
The first question finds nothing in the cache, the others find the system prompt. Two engines, with
and without the cache, run in one process. They get the same prompts and take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

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

WITH, WITHOUT = "with", "without"
FIRST_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
Summary = dict[str, dict[str, dict[str, float]]]


def make_prompts(args: argparse.Namespace, rng: random.Random, vocab_size: int) -> list[list[int]]:
    """Prompts as token ids: questions after one new system prompt."""
    ids = range(256, vocab_size)
    system = rng.choices(ids, k=args.prefix_len)
    return [system + rng.choices(ids, k=args.question_len) for _ in range(args.num_questions)]


async def ask(engine: AsyncEngine, prompt: list[int]) -> tuple[float, int]:
    """Seconds until the first token, and the number of prompt tokens found in the cache."""
    begin = time.perf_counter()
    stream = await engine.submit(prompt, FIRST_TOKEN)
    output = await anext(stream)
    seconds = time.perf_counter() - begin
    await stream.aclose()
    return seconds, output.num_cached_tokens


async def measure(args: argparse.Namespace) -> tuple[dict[str, dict[str, list[float]]], set[int]]:
    """Milliseconds of the first and the later questions, with and without the cache; and the
    numbers of tokens that later questions found in it."""
    taken: dict[str, dict[str, list[float]]] = {
        name: {"first": [], "later": []} for name in (WITH, WITHOUT)
    }
    cached = set()
    options = {"dtype": args.dtype, "disable_log_stats": True}
    async with (
        AsyncEngine(args.model, enable_prefix_caching=True, **options) as first,
        AsyncEngine(args.model, enable_prefix_caching=False, **options) as second,
    ):
        engines = {WITH: first, WITHOUT: second}
        rng = random.Random(args.seed)
        for turn in range(args.rounds + 1):  # the first one warms up
            prompts = make_prompts(args, rng, first.info.vocab_size)
            for number, prompt in enumerate(prompts):
                for name in (WITH, WITHOUT) if turn % 2 else (WITHOUT, WITH):
                    seconds, hits = await ask(engines[name], prompt)
                    if turn:
                        taken[name]["later" if number else "first"].append(seconds * 1000)
                        cached |= {hits} if number and name == WITH else set()
            print(f"round {turn} of {args.rounds}" if turn else "warmed up", flush=True)
    return taken, cached


def show(summary: Summary) -> None:
    """Print the medians."""
    table = make_table("TTFT, median", "without", "with prefix caching", "ratio")
    for row, title in (("first", "first question"), ("later", "later questions")):
        without, cached = (summary[name][row]["median"] for name in (WITHOUT, WITH))
        table.add_row(title, f"{without:.0f} ms", f"{cached:.0f} ms", f"{cached / without:.2f}")
    Console().print(table)


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_model_flags(parser)
    parser.add_argument("--prefix-len", type=int, default=500, help="tokens of the system prompt")
    parser.add_argument("--question-len", type=int, default=20, help="tokens of a question")
    parser.add_argument(
        "--num-questions", type=int, default=6, help="questions after each system prompt"
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of system prompts")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    set_threads(args)
    taken, cached = asyncio.run(measure(args))
    summary = summarize_all(taken)
    show(summary)
    print(f"prompt tokens that a later question found in the cache: {sorted(cached)}")
    record(args, "prefix_caching", {"milliseconds": summary, "cached_tokens": sorted(cached)})


if __name__ == "__main__":
    main()
