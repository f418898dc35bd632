"""Compares `tokenmill simulate fleet` with real replicas under the same load.

python benchmarks/fleet_check.py --help

Real replicas are engines in processes of their own with one thread each, as in `tokenmill serve`,
used without HTTP. Requests arrive at fixed times, even if the engines are busy. In each round, all
routers get the same requests. Each round has new prompts. The figure of a round is its mean TTFT,
because the median of few requests jumps between requests with and without a cached prefix. Measure
the step times first, on the same machine with the same model and dtype, when nothing else runs:

OMP_NUM_THREADS=1 tokenmill simulate measure --dtype bfloat16 -o step-time.json

The exit status is 0 if the simulation agrees, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recording import make_parser, make_table, record
from rich.console import Console

from tokenmill import SamplingParams
from tokenmill.assembly import build_supervised_engine
from tokenmill.backends.machine import places
from tokenmill.backends.machine.threads import ThreadShare, divide_cores
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.client import EngineClient
from tokenmill.core.interfaces import no_progress
from tokenmill.core.requests.request_options import RequestOptions
from tokenmill.planning.fleet.curves import Curve
from tokenmill.planning.fleet.run import FleetRun
from tokenmill.planning.fleet.settings import FleetSettings
from tokenmill.planning.fleet.traffic import SyntheticTraffic
from tokenmill.planning.step_time import StepTimes, read_step_times
from tokenmill.planning.workload import PlannedRequest

Means = dict[str, list[float]]
"""By router: the mean TTFT of each round, in milliseconds."""
TOLERANCE = 0.2
SPARE_SECONDS = 60
"""A round that lasts this much longer than its arrivals is given up: the machine is too slow."""
QUIET_LOAD = 0.5
"""Maximum load average at the start. If it is higher, the real times are not reliable."""
STEP = 7919
"""Distance between two token ids of a prompt; it is a prime, so prompts differ soon."""


def draw(args: argparse.Namespace, turn: int) -> list[PlannedRequest]:
    """The requests of a round, with the model's token ids."""
    traffic = SyntheticTraffic(
        curve=Curve(rate=args.request_rate),
        duration=args.duration,
        num_tenants=args.tenants,
        prefix_len=args.prefix_len,
        input_len=args.input_len,
        output_len=args.output_len,
        seed=args.seed + turn,
    )
    span = args.vocab_size - 256
    return [
        replace(
            one,
            prompt_token_ids=tuple(
                256 + (token * STEP + turn * 104_729) % span for token in one.prompt_token_ids
            ),
        )
        for one in traffic.requests()
    ]


async def serve(engine: EngineClient, requests: Sequence[PlannedRequest]) -> float:
    """Send the requests at their times; returns the mean TTFT in milliseconds."""
    begin = time.perf_counter()

    async def ask(one: PlannedRequest) -> float:
        await asyncio.sleep(max(0.0, begin + one.at - time.perf_counter()))
        sent, first = time.perf_counter(), None
        params = SamplingParams(temperature=0.0, max_tokens=one.max_tokens, ignore_eos=True)
        options = RequestOptions(session_id=one.session_id)
        async for _ in engine.generate(one.prompt_token_ids, params, options):
            first = first or time.perf_counter()
        assert first is not None, "it generates"
        return first - sent

    async with asyncio.timeout(requests[-1].at + SPARE_SECONDS):
        return 1000 * statistics.mean(await asyncio.gather(*map(ask, requests)))


async def measure(args: argparse.Namespace, size: int) -> Means:
    """Measure the means of real replicas. Each replica computes a few requests as a warm-up."""
    found: Means = defaultdict(list)
    for router in args.routers:
        begin = time.perf_counter()
        config = config_of(args, size, router)
        async with build_supervised_engine(
            config, no_progress, stall_timeout=60, max_restarts=0
        ) as engine:
            await serve(engine, [replace(one, at=0.0) for one in draw(args, 0)[: 2 * size]])
            print(f"{size} replicas, {router}: {time.perf_counter() - begin:.0f} s until ready")
            for turn in range(1, args.rounds + 1):
                found[router].append(mean := await serve(engine, draw(args, turn)))
                print(f"{size} replicas, {router}, round {turn}: {mean:.0f} ms", flush=True)
    return found


def let_replicas_share_cores() -> None:
    """Allow more replicas than cores, which a server refuses. Each has one thread on any core."""

    def divide_or_share(number: int) -> tuple[ThreadShare, ...]:
        return divide_cores(number) or (ThreadShare(cpus=(), num_threads=1),) * number

    vars(places)["divide_cores"] = divide_or_share


def simulate(args: argparse.Namespace, size: int, times: StepTimes) -> Means:
    """The same rounds on paper. Each begins with empty caches, and its prompts are new anyway."""
    found: Means = defaultdict(list)
    for router in args.routers:
        for turn in range(1, args.rounds + 1):
            settings = FleetSettings(num_replicas=size)
            run = FleetRun(
                draw(args, turn), args.duration, settings, config_of(args, size, router), times
            )
            mean = run.run().mean_ttft_ms
            assert mean is not None, "there are requests"
            found[router].append(mean)
    return found


def config_of(args: argparse.Namespace, size: int, router: str) -> EngineConfig:
    return EngineConfig.from_options(
        model=args.model,
        dtype=args.dtype,
        data_parallel_size=size,
        router=router,
        disable_log_stats=True,
    )


def compare(args: argparse.Namespace, times: StepTimes) -> dict[str, dict[str, object]]:
    """Means by number of replicas and router, and whether the simulation agrees."""
    result: dict[str, dict[str, object]] = {}
    about = {"load_average_begin": os.getloadavg()[1], "step_time_date": times.date}
    for size in args.replicas:
        real = asyncio.run(measure(args, size))
        paper = simulate(args, size, times)
        middle = {
            router: (statistics.median(paper[router]), statistics.median(real[router]))
            for router in args.routers
        }
        on_paper_first = sorted(middle, key=lambda router: middle[router][0])
        in_fact_first = sorted(middle, key=lambda router: middle[router][1])
        table = make_table(f"{size} replicas: mean TTFT", "simulated", "real", "ratio")
        for router, (on_paper, in_fact) in middle.items():
            ratio = on_paper / in_fact
            table.add_row(router, f"{on_paper:.0f} ms", f"{in_fact:.0f} ms", f"{ratio:.2f}")
        Console().print(table)
        result[str(size)] = {
            "simulated_ms": paper,
            "real_ms": real,
            "same_order": on_paper_first == in_fact_first,
            "within_20_percent": all(abs(a / b - 1) <= TOLERANCE for a, b in middle.values()),
        }
        record(args, "fleet_check", {**about, "replicas": result})  # so far
        print(f"order on paper: {on_paper_first}; in fact: {in_fact_first}")
    return result


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--step-time", required=True, help="of `simulate measure`")
    parser.add_argument("--model", help="directory or .gguf file; None: the default model")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--routers", nargs="+", default=["round-robin", "prefix-aware"])
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--request-rate", type=float, default=1.5, help="requests per second")
    parser.add_argument("--duration", type=float, default=16.0, help="seconds of a round")
    parser.add_argument("--tenants", type=int, default=6)
    parser.add_argument("--prefix-len", type=int, default=512, help="tokens of a tenant's prefix")
    parser.add_argument("--input-len", type=int, default=32, help="further tokens of a prompt")
    parser.add_argument("--output-len", type=int, default=8)
    parser.add_argument("--vocab-size", type=int, default=49152, help="token ids are below it")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    times = read_step_times(Path(args.step_time))
    os.environ["OMP_NUM_THREADS"] = "1"  # engines are started later, and take it over
    let_replicas_share_cores()
    if os.getloadavg()[1] > QUIET_LOAD:
        print(f"warning: the load average is {os.getloadavg()[1]:.1f}; real times will be too long")
    runs = len(args.replicas) * len(args.routers)
    seconds = runs * (args.rounds * (args.duration + 2) + 12)
    print(f"this takes about {seconds / 60:.0f} minutes", flush=True)
    result = compare(args, times)
    agrees = all(one["same_order"] and one["within_20_percent"] for one in result.values())
    sys.exit(0 if agrees else 1)


if __name__ == "__main__":
    main()
