"""Flags of a workload: recorded requests, or random ones as in `vllm bench`."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ....core.errors import ConfigError

if TYPE_CHECKING:
    from ....planning.workload import PlannedRequest

_RANDOM = {
    "num_prompts": (int, "number of requests (default: 100)"),
    "random_input_len": (int, "average number of prompt tokens of a request (default: 512)"),
    "random_output_len": (int, "average number of tokens that a request generates (default: 64)"),
    "random_range_ratio": (
        float,
        "lengths vary by this fraction of the average, in [0, 1) (default: 0.0)",
    ),
    "random_prefix_len": (
        int,
        "additional tokens at the beginning of all prompts, the same in each (default: 0)",
    ),
}
_ALIASES = {
    "random_input_len": ("--input-tokens", "--input-len"),
    "random_output_len": ("--output-tokens", "--output-len"),
}
_ARRIVALS = {
    "request_rate": (
        float,
        "requests per second; inf: all at once (default: 0.3; with --workload: inf)",
    ),
    "burstiness": (
        float,
        "1: a Poisson process; less: bursts; more: even intervals (default: 1.0)",
    ),
}


def add_workload_flags(parser: argparse.ArgumentParser, *, with_rate: bool = True) -> None:
    """Add the flags of a workload, without --request-rate for a command that looks for it."""
    group = parser.add_argument_group(
        "workload", "recorded requests, or random ones as in `vllm bench`"
    )
    group.add_argument("--workload", type=Path, metavar="PATH",
                       help="file of recorded requests: a JSON document or JSON lines, "
                       "see docs/simulate.md")  # fmt: skip
    arrivals = dict(_ARRIVALS)
    if not with_rate:
        del arrivals["request_rate"]
    for name, (kind, text) in {**_RANDOM, **arrivals}.items():
        flags = (f"--{name.replace('_', '-')}", *_ALIASES.get(name, ()))
        group.add_argument(*flags, dest=name, type=kind, metavar="N", help=text)
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of all random numbers (default: 0)"
    )


def read_workload(args: argparse.Namespace) -> tuple[PlannedRequest, ...]:
    """The requests of the flags, in order of arrival. Raises ConfigError."""
    from ....planning import workload_file
    from ....planning.workload import SyntheticWorkload, let_arrive

    given = {
        name: getattr(args, name)
        for name in (*_RANDOM, *_ARRIVALS)
        if getattr(args, name, None) is not None
    }
    if args.workload is None:
        return SyntheticWorkload(**given, seed=args.seed).draw()
    for name in _RANDOM:
        if name in given:
            raise ConfigError(f"--{name.replace('_', '-')} has no effect with --workload")
    recorded = workload_file.read_workload(args.workload, args.seed)
    if recorded.ignored_fields:
        ignored = ", ".join(recorded.ignored_fields)
        print(f"note: {args.workload}: ignored fields: {ignored}", file=sys.stderr)
    if recorded.has_arrivals:
        if given:
            raise ConfigError(
                "--request-rate and --burstiness have no effect: "
                "the workload has arrival times (at)"
            )
        return recorded.requests
    rate, burstiness = given.get("request_rate", math.inf), given.get("burstiness", 1.0)
    return let_arrive(recorded.requests, rate, burstiness, args.seed)
