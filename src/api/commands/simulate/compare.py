"""`tokenmill simulate compare`: runs a workload under several settings, in virtual time."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....core.config import EngineConfig
from ....core.errors import ConfigError
from ..flags.engine import SERVING, SPECULATION, UNUSED, add_engine_flags, engine_config
from ..progress import ProgressDisplay
from .comparison import Comparison, describe, describe_times, print_json, print_tables
from .vary import Settings, vary

if TYPE_CHECKING:
    from ....planning.step_time import StepTimes
    from ....planning.virtual_run import VirtualRun
    from ....planning.workload import PlannedRequest

DEFAULT_VARY = "scheduler=chunked,prefill-first"
LEFT_OUT = (
    "model", "tokenizer", "served_model_name", "dtype", "device", "seed", "generation_config",
    "hf_overrides", "chat_template", "max_logprobs", "gpu_memory_utilization", "kv_cache_dtype",
    "attention_backend", "disable_log_stats", *UNUSED, *SERVING, *SPECULATION,
)  # fmt: skip
"""Settings that have no effect here: the step times were measured with a certain value of each, and
random tokens cannot be drafted."""
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


def add_compare_parser(verbs: Any) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "compare",
        help="compare schedulers and settings under a workload",
        description="Run a workload through the real engine and plugins on a virtual clock. No "
        "model is computed: the duration of each step comes from `tokenmill simulate measure`.",
        examples=(
            "tokenmill simulate compare --request-rate 0.5",
            "tokenmill simulate compare --vary max_num_batched_tokens=128,256,512",
            "tokenmill simulate compare --step-time step-time.json",
        ),
    )
    parser.add_argument("--step-time", type=Path, metavar="PATH",
                        help="file from `tokenmill simulate measure` (default: step times of the "
                        "default model, measured on another machine)")  # fmt: skip
    parser.add_argument("--vary", action="append", metavar="KEY=A,B,C",
                        help="engine setting and its values to compare; may be repeated, "
                        f"then all combinations are run (default: {DEFAULT_VARY})")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_workload_flags(parser)
    add_engine_flags(parser, leave_out=LEFT_OUT)
    parser.set_defaults(run=_run)


def _add_workload_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "workload", "recorded requests, or random ones as in `vllm bench`"
    )
    group.add_argument("--workload", type=Path, metavar="PATH",
                       help="file of recorded requests: a JSON document or JSON lines, "
                       "see docs/simulate.md")  # fmt: skip
    for name, (kind, text) in {**_RANDOM, **_ARRIVALS}.items():
        flags = (f"--{name.replace('_', '-')}", *_ALIASES.get(name, ()))
        group.add_argument(*flags, dest=name, type=kind, metavar="N", help=text)
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of all random numbers (default: 0)"
    )


def _run(args: argparse.Namespace) -> int:
    from ....planning.step_time import bundled_step_times, read_step_times

    times = read_step_times(args.step_time) if args.step_time else bundled_step_times()
    requests = _read_workload(args)
    combinations = _combinations(args)
    base = engine_config(args)
    runs = [_prepare(requests, base, settings, times) for settings in combinations]
    if args.step_time is None:
        print(f"warning: {describe_times(times, None)}", file=sys.stderr)
    outcomes = []
    with ProgressDisplay() as progress:
        for settings, run in zip(combinations, runs, strict=True):
            outcomes.append(run.run(partial(progress, f"simulating {describe(settings)}")))
    comparison = Comparison(
        requests=requests,
        times=times,
        step_time_file=args.step_time,
        settings=combinations,
        outcomes=outcomes,
        examples=[run.examples for run in runs],
        decisions=[run.decisions for run in runs],
    )
    print_json(comparison) if args.json else print_tables(comparison)
    return 0


def _combinations(args: argparse.Namespace) -> list[Settings]:
    """All settings to compare. If a flag names a scheduler, only that one is run by default."""
    given = {
        field.name: getattr(args, field.name)
        for field in dataclasses.fields(EngineConfig)
        if getattr(args, field.name, None) is not None
    }
    is_chosen = "scheduler" in given or "enable_chunked_prefill" in given
    texts = args.vary or ([] if is_chosen else [DEFAULT_VARY])
    return vary(texts, given, leave_out=LEFT_OUT)


def _prepare(
    requests: Sequence[PlannedRequest], base: EngineConfig, settings: Settings, times: StepTimes
) -> VirtualRun:
    """Build the run, so that impossible settings fail before the first run. Raises ConfigError."""
    from ....planning.virtual_run import VirtualRun

    config = dataclasses.replace(base, disable_log_stats=True, **settings)
    return VirtualRun(requests, config, times)


def _read_workload(args: argparse.Namespace) -> tuple[PlannedRequest, ...]:
    from ....planning.workload import SyntheticWorkload, let_arrive
    from ....planning.workload_file import read_workload

    given = {
        name: getattr(args, name)
        for name in (*_RANDOM, *_ARRIVALS)
        if getattr(args, name) is not None
    }
    if args.workload is None:
        return SyntheticWorkload(**given, seed=args.seed).draw()
    for name in _RANDOM:
        if name in given:
            raise ConfigError(f"--{name.replace('_', '-')} has no effect with --workload")
    recorded = read_workload(args.workload, args.seed)
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
