"""`tokenmill simulate seeds`: runs the engine with random workloads and faults, and checks it."""

from __future__ import annotations

import argparse
import time
from typing import Any

from ....core.errors import ConfigError
from ..printing import print_json
from ..progress import ProgressDisplay


def add_seeds_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "seeds",
        help="check the engine itself under random workloads and faults",
        description="Each seed is one run of the engine, with random arrivals, aborts, failing "
        "steps, plugins that raise, and pools that are too small. All invariants are checked "
        "after every step, and every token at the end.",
        examples=(
            "tokenmill simulate seeds --count 20",
            "tokenmill simulate seeds --seed 7 --trace",
        ),
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="first seed (default: 0)")
    parser.add_argument(
        "--count", type=int, metavar="N", help="number of seeds (default: 200; with --trace: 1)"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--trace", action="store_true", help="print every event")
    output.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from ....testing.simulation import run_seeds

    count = args.count if args.count is not None else 1 if args.trace else 200
    if count < 1:
        raise ConfigError(f"--count must be at least 1, got {count}")
    started = time.perf_counter()
    with ProgressDisplay() as progress:
        total = run_seeds(
            range(args.seed, args.seed + count),
            progress=lambda done: progress("seeds", done / count),
            trace=print if args.trace else None,
        )
    seconds = time.perf_counter() - started
    if args.json:
        print_json(total)
        return 0
    print(
        f"{total.num_seeds} seeds passed in {seconds:.1f} s: {total.num_requests} requests, "
        f"{total.num_tokens} tokens, {total.num_preemptions} preemptions "
        f"({total.num_swaps} swaps), {total.num_hit_tokens} tokens from the prefix cache, "
        f"{total.num_failed_steps} failed steps, {total.num_plugin_failures} plugin failures"
    )
    return 0
