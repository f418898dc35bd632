"""Compares N replicas with one thread each and one engine with N threads; also compares routers.

python benchmarks/data_parallel.py --help

All engines run in processes of their own, as in `tokenmill serve`, and are used without HTTP. They
are loaded once; in each round they get the same prompts, one after the other, in a rotating order.
The first round is a warm-up. The first part generates from random prompts: one at a time, and
several at once. In the second part, a few clients ask questions after long system prompts. These
are new in every round. One engine computes each system prompt once. With several engines, the
router decides how often a system prompt is computed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from recording import make_parser, make_table, percentile, record, summarize_all
from rich.console import Console

from tokenmill import SamplingParams
from tokenmill.assembly import build_supervised_engine
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.client import EngineClient
from tokenmill.core.interfaces import no_progress
from tokenmill.core.shell.engine_shell import EngineShell

ONE, TWO, TURNS = "1 x N threads", "N x 1 thread, prefix-aware", "N x 1 thread, round-robin"
Figures = dict[str, dict[str, list[float]]]
"""By contender and figure: one value per round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The times of one request, in seconds, and its cached prompt tokens."""

    to_first_token: float
    whole: float
    num_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int


async def ask(engine: EngineClient, prompt: list[int], num_tokens: int) -> Answer:
    """Generate, and measure."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    begin, first, num_cached = time.perf_counter(), None, 0
    async for output in engine.generate(prompt, params):
        first = first or time.perf_counter()
        num_cached = output.num_cached_tokens
    assert first is not None, "it generates"
    return Answer(
        to_first_token=first - begin,
        whole=time.perf_counter() - begin,
        num_tokens=num_tokens,
        num_prompt_tokens=len(prompt),
        num_cached_tokens=num_cached,
    )


async def ask_all(
    engine: EngineClient, prompts: Sequence[list[int]], num_tokens: int, num_clients: int
) -> tuple[list[Answer], float]:
    """The answers to all prompts, `num_clients` at a time, and the seconds for all of them."""
    waiting, answers = list(reversed(prompts)), []

    async def client() -> None:
        while waiting:
            answers.append(await ask(engine, waiting.pop(), num_tokens))

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(num_clients)))
    return answers, time.perf_counter() - begin


def throughput_figures(answers: Sequence[Answer], seconds: float) -> dict[str, float]:
    """Tokens per second, and means over requests: time to first token, and time per later token."""
    each = [(a.whole - a.to_first_token) / max(1, a.num_tokens - 1) for a in answers]
    return {
        "tokens_per_second": sum(a.num_tokens for a in answers) / seconds,
        "time_to_first_token_ms": 1000 * statistics.mean(a.to_first_token for a in answers),
        "inter_token_ms": 1000 * statistics.mean(each),
    }


def prefix_figures(answers: Sequence[Answer], seconds: float) -> dict[str, float]:
    """The fraction of prompt tokens that were cached, times to first token, and total seconds."""
    firsts = [1000 * a.to_first_token for a in answers]
    cached = sum(a.num_cached_tokens for a in answers)
    return {
        "hit_rate": cached / sum(a.num_prompt_tokens for a in answers),
        "time_to_first_token_ms": statistics.mean(firsts),
        "time_to_first_token_p90_ms": percentile(firsts, 0.9),
        "seconds": seconds,
    }


async def measure(args: argparse.Namespace) -> dict[str, Figures]:
    """The figures of each workload, by contender."""
    found: dict[str, Figures] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(make_engine(args, size, router))
            for name, size, router in (
                (ONE, 1, None),
                (TWO, args.replicas, "prefix-aware"),
                (TURNS, args.replicas, "round-robin"),
            )
        }
        rng = random.Random(args.seed)
        names = list(engines)
        for turn in range(args.rounds + 1):
            for workload, (prompts, num_tokens, num_clients) in workloads(args, rng).items():
                order = names[turn % len(names) :] + names[: turn % len(names)]
                for name in order:
                    if name == TURNS and workload != "shared prefixes":
                        continue  # without common beginnings it is the same as TWO
                    answers, seconds = await ask_all(
                        engines[name], prompts, num_tokens, num_clients
                    )
                    shared = workload == "shared prefixes"
                    figures = (prefix_figures if shared else throughput_figures)(answers, seconds)
                    for figure, value in figures.items() if turn else ():
                        found[workload][name][figure].append(value)
            print(f"round {turn} of {args.rounds}" if turn else "warmed up", flush=True)
    return found


def make_engine(args: argparse.Namespace, size: int, router: str | None) -> EngineShell:
    config = EngineConfig.from_options(
        model=args.model,
        dtype=args.dtype,
        data_parallel_size=size,
        router=router,
        disable_log_stats=True,
    )
    return build_supervised_engine(config, no_progress, stall_timeout=60, max_restarts=0)


def workloads(
    args: argparse.Namespace, rng: random.Random
) -> dict[str, tuple[list[list[int]], int, int]]:
    """By name: prompts as token ids, tokens to generate, and clients that ask at the same time."""
    ids = range(256, args.vocab_size)
    loads = {
        f"{number} at a time": (
            [rng.choices(ids, k=args.prompt_len) for _ in range(number * 2)],
            args.output_len,
            number,
        )
        for number in args.num_clients
    }
    systems = [rng.choices(ids, k=args.prefix_len) for _ in range(args.num_prefixes)]
    questions = [
        system + rng.choices(ids, k=args.question_len)
        for system in systems
        for _ in range(args.num_questions)
    ]
    rng.shuffle(questions)
    return {**loads, "shared prefixes": (questions, args.answer_len, args.num_askers)}


def show(result: dict[str, dict[str, dict[str, dict[str, float]]]]) -> None:
    """Print the medians."""
    for workload, contenders in result.items():
        figures = list(next(iter(contenders.values())))
        table = make_table(workload, *figures)
        for name, summary in contenders.items():
            table.add_row(name, *(f"{summary[figure]['median']:.3g}" for figure in figures))
        Console().print(table)


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", help="directory or .gguf file; None: the default model")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--replicas", type=int, default=2, help="N; at most one per core")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--num-clients", type=int, nargs="+", default=[1, 2, 8, 32])
    parser.add_argument("--prompt-len", type=int, default=64, help="tokens of a random prompt")
    parser.add_argument("--output-len", type=int, default=48, help="tokens of its answer")
    parser.add_argument("--num-prefixes", type=int, default=6, help="system prompts per round")
    parser.add_argument("--prefix-len", type=int, default=500, help="tokens of a system prompt")
    parser.add_argument("--num-questions", type=int, default=6, help="questions to each")
    parser.add_argument("--question-len", type=int, default=20, help="tokens of a question")
    parser.add_argument("--answer-len", type=int, default=16, help="tokens of its answer")
    parser.add_argument("--num-askers", type=int, default=4, help="clients that ask questions")
    parser.add_argument("--vocab-size", type=int, default=49152, help="token ids are below it")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    found = asyncio.run(measure(args))
    result = {workload: summarize_all(figures) for workload, figures in found.items()}
    show(result)
    record(args, "data_parallel", {"workloads": result})


if __name__ == "__main__":
    main()
