"""A load for several benchmarks: long prompts arrive among running answers.

A few requests with short prompts generate long answers, like chats. Meanwhile long prompts with
short answers arrive. Times are measured by the client, in the event loop: from `submit` to the
first token (TTFT), and between two tokens of one request (ITL).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from recording import percentile

from tokenmill import AsyncEngine, OutputKind, SamplingParams


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the size of the load."""
    parser.add_argument("--num-short", type=int, default=8, help="requests with short prompts")
    parser.add_argument("--output-len", type=int, default=96, help="tokens that each generates")
    parser.add_argument("--num-long", type=int, default=4, help="requests with long prompts")
    parser.add_argument("--long-len", type=int, default=512, help="tokens of a long prompt")
    parser.add_argument(
        "--interval", type=float, default=1.0, help="seconds between two long prompts"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of the load."""

    at: float
    """Seconds after the start."""
    prompt: list[int]
    num_output_tokens: int
    is_long: bool


@dataclass(slots=True)
class Times:
    """The clients' measurements in one round, in seconds."""

    gaps: list[float] = field(default_factory=list)
    """Times between two tokens of a short request."""
    short_ttfts: list[float] = field(default_factory=list)
    long_ttfts: list[float] = field(default_factory=list)


def make_load(args: argparse.Namespace, vocab_size: int) -> list[Arrival]:
    """All short requests at the start, then a long one every `interval` seconds."""
    rng = random.Random(args.seed)

    def prompt(num_tokens: int) -> list[int]:
        return rng.choices(range(256, vocab_size), k=num_tokens)

    short = [
        Arrival(at=0.0, prompt=prompt(32), num_output_tokens=args.output_len, is_long=False)
        for _ in range(args.num_short)
    ]
    long = [
        Arrival(
            at=(index + 1) * args.interval,
            prompt=prompt(args.long_len),
            num_output_tokens=4,
            is_long=True,
        )
        for index in range(args.num_long)
    ]
    return short + long


async def serve(engine: AsyncEngine, load: Sequence[Arrival]) -> tuple[Times, float]:
    """Run the load on one engine; returns the clients' times, and the duration in seconds."""
    times = Times()
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for arrival in load:
            group.create_task(call(engine, arrival, begin, times))
    return times, time.perf_counter() - begin


async def call(engine: AsyncEngine, arrival: Arrival, begin: float, times: Times) -> None:
    """One client: submits its request on time, and adds its measurements to `times`."""
    await asyncio.sleep(begin + arrival.at - time.perf_counter())
    params = SamplingParams(
        temperature=0.0,
        max_tokens=arrival.num_output_tokens,
        ignore_eos=True,
        output_kind=OutputKind.DELTA,
    )
    last = time.perf_counter()
    is_first = True
    async for output in engine.generate(arrival.prompt, params):
        if not output.outputs or not output.outputs[0].token_ids:
            continue
        now = time.perf_counter()
        if is_first:
            (times.long_ttfts if arrival.is_long else times.short_ttfts).append(now - last)
        elif not arrival.is_long:
            times.gaps.append(now - last)
        last, is_first = now, False


def condense(times: Times, seconds: float) -> dict[str, float]:
    """The figures of one round, in milliseconds except for `seconds`."""
    found = {
        "itl_p50": percentile(times.gaps, 0.5),
        "itl_p99": percentile(times.gaps, 0.99),
        "itl_max": max(times.gaps),
        "long_ttft_p50": percentile(times.long_ttfts, 0.5),
        "long_ttft_p99": percentile(times.long_ttfts, 0.99),
        "short_ttft_p50": percentile(times.short_ttfts, 0.5),
    }
    return {**{name: value * 1000 for name, value in found.items()}, "seconds": seconds}
