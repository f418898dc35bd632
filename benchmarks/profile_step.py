"""Shows where the time of a step goes: engine, input batch, parts of the model, sampling, text.

python benchmarks/profile_step.py --help

The real engine with the default model decodes for 1, 8 and 32 requests, then computes prompts of
512 tokens, one at a time. The device thread and the event loop work at the same time, as far as
Python lets two threads run. The first table is the device thread's: its rows add up to a step. The
second table is the event loop's, at the same time. Times inside the model are those of its first
thread. The fastest round is shown.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from recording import make_parser, record
from rich.console import Console
from rich.progress import track
from rich.table import Table
from step_times import DEVICE_ROWS, LOOP_ROWS, StepTimes, open_watched_engine

from tokenmill import OutputKind, SamplingParams
from tokenmill.core.shell.engine_shell import EngineShell

LEAD = 4
"""Tokens of every request before the measurement starts: from then on, all requests decode."""


async def profile_decode(args: argparse.Namespace, batch: int) -> StepTimes:
    """Measure steps in which `batch` requests get one token each."""
    async with open_watched_engine(args, batch, args.context) as (engine, watch):
        found = []
        for number in range(args.rounds + 1):
            counts = [0] * batch

            async def read(caller: int, number: int = number, counts: list[int] = counts) -> None:
                prompt = [1000 + number] + [1000 + caller] * (args.context - args.steps - 1)
                async for _ in engine.generate(prompt, params(args.steps + 4 * LEAD)):
                    counts[caller] += 1
                    if min(counts) == counts[caller] == LEAD:
                        watch.start()
                    if max(counts) == counts[caller] == LEAD + args.steps and watch.is_running:
                        found.append(watch.stop())

            await asyncio.gather(*(read(caller) for caller in range(batch)))
    return best(found[1:])  # the first round warms up


async def profile_prefill(args: argparse.Namespace) -> StepTimes:
    """Measure steps that compute one whole prompt and its first token."""
    async with open_watched_engine(args, 1, args.prefill + 1) as (engine, watch):
        found = []
        for number in range(args.rounds + 1):
            watch.start()
            for _ in range(4):
                await exhaust(engine, [1000 + number] * args.prefill)
            found.append(watch.stop())
    return best(found[1:])


async def exhaust(engine: EngineShell, prompt: Sequence[int]) -> None:
    """Request one token, and wait for the end."""
    async for _ in engine.generate(prompt, params(1)):
        pass


def params(max_tokens: int) -> SamplingParams:
    """Greedy sampling of exactly `max_tokens` tokens, read as a stream of deltas."""
    return SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, output_kind=OutputKind.DELTA
    )


def best(found: Sequence[StepTimes]) -> StepTimes:
    """The fastest round: the one that other programs disturbed least."""
    return min(found, key=lambda times: times.wall)


def show(title: str, rows: Sequence[str], found: dict[str, StepTimes], console: Console) -> None:
    """Print milliseconds and percentages of a step, by row and workload."""
    table = Table(box=None)
    table.add_column(title, no_wrap=True)
    for name in found:
        table.add_column(name, justify="right", no_wrap=True)
    for row in ("a step", *rows):
        values = [times.wall if row == "a step" else times.parts[row] for times in found.values()]
        if any(values):
            cells = zip(values, found.values(), strict=True)
            table.add_row(row, *(f"{v * 1e3:.2f} {v / t.wall:4.0%}" for v, t in cells))
    console.print(table)


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", help="directory or .gguf file; None: the default model")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[1, 8, 32], help="numbers of requests"
    )
    parser.add_argument("--context", type=int, default=256, help="tokens at the end of a request")
    parser.add_argument("--steps", type=int, default=64, help="measured steps per round")
    parser.add_argument("--prefill", type=int, default=512, help="tokens of a prompt; 0: none")
    parser.add_argument("--rounds", type=int, default=4, help="rounds; the fastest counts")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    console = Console()
    found: dict[str, StepTimes] = {}
    for batch in track(args.batches, "decoding", console=console, transient=True):
        found[f"batch {batch}"] = asyncio.run(profile_decode(args, batch))
    if args.prefill:
        with console.status("computing prompts"):
            found[f"prefill {args.prefill}"] = asyncio.run(profile_prefill(args))
    show("device thread: ms", DEVICE_ROWS, found, console)
    show("event loop meanwhile: ms", LOOP_ROWS, found, console)
    by_workload = {name: {"a step": times.wall, **times.parts} for name, times in found.items()}
    record(args, "profile_step", {"seconds_per_step": by_workload})


if __name__ == "__main__":
    main()
