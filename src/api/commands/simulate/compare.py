"""`tokenmill simulate compare`: runs a workload under several settings, in virtual time."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....core.config import EngineConfig
from ..flags.engine import (
    IMAGES,
    SERVING,
    SPECULATION,
    add_engine_flags,
    engine_config,
    given_settings,
)
from ..progress import ProgressDisplay
from .comparison import Comparison, describe, describe_times, print_json, print_tables
from .vary import Settings, vary
from .workload_flags import add_workload_flags, read_workload

if TYPE_CHECKING:
    from ....planning.step_time import StepTimes
    from ....planning.virtual_run import VirtualRun
    from ....planning.workload import PlannedRequest

DEFAULT_VARY = "scheduler=chunked,prefill-first"
LEFT_OUT = (
    "model", "tokenizer", "served_model_name", "dtype", "device", "seed", "generation_config",
    "hf_overrides", "chat_template", "max_logprobs", "gpu_memory_utilization", "kv_cache_dtype",
    "attention_backend", "linear_backend", "quantize_on_load", "tensor_parallel_size",
    "pipeline_parallel_size", "step_log_size", "disable_log_stats", *IMAGES, *SERVING, *SPECULATION,
)  # fmt: skip
"""Settings that have no effect here: the step times were measured with a certain value of each, and
random tokens cannot be drafted."""


def add_compare_parser(verbs: Any) -> None:
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
    add_workload_flags(parser)
    add_engine_flags(parser, leave_out=LEFT_OUT)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from ....planning.step_time import bundled_step_times, read_step_times

    times = read_step_times(args.step_time) if args.step_time else bundled_step_times()
    requests = read_workload(args)
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
    given = given_settings(args)
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
