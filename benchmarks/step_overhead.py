"""Measures a decode step without the model: engine, plugins, batching, sampling, text, streams.

python benchmarks/step_overhead.py --help

With --step-log it measures the CPU time of the step log instead: in its own methods, over whole
lives of requests, and of decode steps with and without it.

It uses the real EngineShell, runner and sampler, and the default model's tokenizer. The model
computes nothing: it returns the same random logits over the real vocabulary. Every request is read
as a stream of deltas, as the server does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from recording import make_parser, record, set_threads, summarize
from rich.console import Console
from rich.table import Table

from tokenmill import OutputKind, SamplingParams
from tokenmill.assembly import build_parts
from tokenmill.backends.running.runner import StepModel
from tokenmill.backends.state.input_batch import InputBatch
from tokenmill.core.config import EngineConfig
from tokenmill.core.interfaces import Progress
from tokenmill.core.shell.engine_shell import EngineShell
from tokenmill.core.shell.local_engine import EngineParts, local_engine


class InstantModel:
    """A StepModel that returns random logits of the right shape without any work."""

    def __init__(
        self, max_num_seqs: int, vocab_size: int, is_greedy: bool, real: StepModel
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self._logits_rv = torch.randn(max_num_seqs, vocab_size, generator=generator)
        self._is_greedy = is_greedy
        self.sampling = real.sampling

    def logits(self, batch: InputBatch) -> torch.Tensor:
        logits_rv = self._logits_rv[: batch.sampled_rows_r.shape[0]]
        return logits_rv if self._is_greedy else logits_rv.clone()  # drawing overwrites them


def make_engine(args: argparse.Namespace, max_num_seqs: int, context: int) -> EngineShell:
    """An engine around the instant model."""
    budget = max_num_seqs * 64

    def build(config: EngineConfig, progress: Progress) -> EngineParts:
        parts = build_parts(config, progress)
        runner: Any = parts.executor._runner  # type: ignore[attr-defined]
        vocab_size, is_greedy = parts.executor.info.vocab_size, args.temperature == 0
        runner._model = InstantModel(max_num_seqs, vocab_size, is_greedy, runner._model)
        return parts

    config = EngineConfig(
        device="cpu",
        dtype="bfloat16",
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        num_gpu_blocks_override=max_num_seqs * (context // 16 + 2),
        enable_prefix_caching=False,
        async_scheduling=args.async_scheduling,
    )
    return local_engine(config, build)


async def read(engine: EngineShell, args: argparse.Namespace, context: int) -> list[float]:
    """The times when one request's tokens arrive."""
    params = SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        max_tokens=args.steps,
        ignore_eos=True,
        output_kind=OutputKind.DELTA,
    )
    prompt = [1000] * (context - args.steps)
    return [time.perf_counter() async for _ in engine.generate(prompt, params)]


async def milliseconds_per_step(args: argparse.Namespace, batch: int, context: int) -> list[float]:
    """Median time between two tokens of `batch` requests of `context` tokens, for every round."""
    rounds = []
    async with make_engine(args, batch, context) as engine:
        for _ in range(args.rounds + 1):
            times = await asyncio.gather(*(read(engine, args, context) for _ in range(batch)))
            begin = max(found[0] for found in times)  # from here on, all requests decode
            gaps = [b - a for found in times for a, b in pairwise(found) if a >= begin]
            rounds.append(statistics.median(gaps) * 1000)
    return rounds[1:]  # the first one warms up


class Meter:
    """Measures the CPU time of some methods of an object, in microseconds, without that of the
    clock."""

    def __init__(self, owner: Any, *names: str) -> None:
        empty: list[float] = []
        for _ in range(1000):
            self._timed(lambda: None, empty)()
        self._clock = statistics.median(empty)
        self._calls: dict[str, list[float]] = {name: [] for name in names}
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name), self._calls[name]))

    def _timed(self, method: Callable[..., Any], calls: list[float]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time_ns()
            found = method(*arguments, **options)
            calls.append((time.thread_time_ns() - began) / 1000)
            return found

        return call

    def take(self) -> dict[str, list[float]]:
        """The calls since the last time, by method."""
        found = {name: [c - self._clock for c in calls] for name, calls in self._calls.items()}
        for calls in self._calls.values():
            calls.clear()
        return found


async def microseconds_of_log(
    args: argparse.Namespace, batch: int, context: int
) -> dict[str, float]:
    """CPU time of the log in a decode step, and per step with the starts and ends of requests; and
    of plan and commit of decode steps with and without the log. All are medians over rounds, which
    alternate in one engine."""
    rounds: dict[str, list[float]] = {"decode": [], "all": [], "with": [], "without": []}
    async with make_engine(args, batch, context) as engine:
        running: Any = engine.running
        core = running._loop.core
        log, steps = core.log, Meter(core, "plan", "commit")
        own = Meter(log, "add", "plan", "commit", "apply", "time", "time_commit")
        for turn in range(2 * (args.rounds + 1)):
            name = "with" if turn % 2 else "without"
            core.log = log if name == "with" else None
            await asyncio.gather(*(read(engine, args, context) for _ in range(batch)))
            found, mine = steps.take(), own.take()
            rounds[name].append(sum(map(statistics.median, found.values())))
            if name == "with":
                num_steps = len(found["commit"])
                of_step = [calls for method, calls in mine.items() if method != "add"]
                rounds["decode"].append(sum(map(statistics.median, of_step)))
                rounds["all"].append(sum(map(sum, mine.values())) / num_steps)
    return {name: statistics.median(values[1:]) for name, values in rounds.items()}


def measure_log(args: argparse.Namespace) -> None:
    table = Table("CPU µs per step", "log, decode", "log, all", "step with", "without", box=None)
    result = {}
    for batch in args.batches:
        found = asyncio.run(microseconds_of_log(args, batch, args.contexts[0]))
        result[str(batch)] = {name: round(value, 1) for name, value in found.items()}
        table.add_row(f"batch {batch}", *(f"{value:.0f}" for value in found.values()))
    Console().print(table)
    record(args, "step_log", {"cpu_microseconds_by_batch": result})


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--threads", type=int, default=1, help="threads for sampling")
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[1, 8, 32, 128], help="numbers of requests"
    )
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=[256, 2048], help="tokens of a request"
    )
    parser.add_argument("--steps", type=int, default=150, help="generated tokens per request")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    parser.add_argument("--top-p", type=float, default=1.0, help="top_p of sampled requests")
    parser.add_argument(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="plan a step while the previous one is computed",
    )
    parser.add_argument(
        "--step-log", action="store_true", help="measure the step log instead, with --contexts[0]"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each batch and context")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    set_threads(args)
    if args.step_log:
        return measure_log(args)
    table = Table("ms per step", *(f"context {c}" for c in args.contexts), box=None)
    result: dict[str, dict[str, dict[str, float]]] = {}
    for batch in args.batches:
        found = {
            str(context): summarize(asyncio.run(milliseconds_per_step(args, batch, context)))
            for context in args.contexts
        }
        result[str(batch)] = found
        table.add_row(f"batch {batch}", *(f"{f['median']:.2f}" for f in found.values()))
    Console().print(table)
    record(args, "step_overhead", {"milliseconds_by_batch_and_context": result})


if __name__ == "__main__":
    main()
