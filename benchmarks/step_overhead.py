"""Measures a decode step without the model: engine, plugins, batching, sampling, text, streams.

python benchmarks/step_overhead.py --help

It uses the real EngineShell, runner and sampler, and the default model's tokenizer. The model
computes nothing: it returns the same random logits over the real vocabulary. Every request is read
as a stream of deltas, as the server does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
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
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each batch and context")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    set_threads(args)
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
