"""`tokenmill simulate measure`: measures this machine's step times and writes them to a file."""

from __future__ import annotations

import argparse
import dataclasses
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....core.config import EngineConfig
from ....core.errors import ConfigError
from ....core.kinds import PREEMPTION_MODE
from ..flags.engine import SERVING, SPECULATION, add_engine_flags, engine_config
from ..printing import print_json
from ..progress import ProgressDisplay

if TYPE_CHECKING:
    from ....planning.step_time import StepTimes


MAX_SPREAD = 0.15
"""Rounds of a quiet machine with few cores differ by 2 to 5 %."""


def add_measure_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "measure",
        help="measure this machine's step times",
        description="Load a model, run test steps on it, and write a file of step times for "
        "`tokenmill simulate compare --step-time FILE`. On a CPU, OMP_NUM_THREADS sets the number "
        "of threads.",
        examples=(
            "tokenmill simulate measure -o step-time.json",
            "tokenmill simulate measure --model model.gguf --seconds 60",
        ),
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("step-time.json"), metavar="PATH",
        help="file to write (default: step-time.json)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=30.0, metavar="SECONDS",
        help="duration of the measurement, at least three rounds (default: 30)",
    )  # fmt: skip
    parser.add_argument(
        "--cpu-time", action="store_true",
        help="measure the CPU time of this process instead of wall time: an estimate for one "
        "thread on a CPU without other work",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the content of the file")
    left_out = ("seed", "served_model_name", "disable_log_stats", *SERVING, *SPECULATION)
    add_engine_flags(parser, leave_out=left_out)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if not args.seconds > 0:
        raise ConfigError(f"--seconds must be positive, got {args.seconds}")
    if not args.output.absolute().parent.is_dir():
        raise ConfigError(f"--output {args.output}: the folder does not exist")
    with ProgressDisplay() as progress:
        found = measure(engine_config(args), args.seconds, progress, by_cpu_time=args.cpu_time)
    found.write(args.output)
    print_json(found) if args.json else _show(found, args.output)
    return 0


def measure(
    config: EngineConfig, seconds: float, progress: ProgressDisplay, *, by_cpu_time: bool = False
) -> StepTimes:
    """Load the model in this process, and measure its steps for about `seconds`."""
    # Swapping can only be measured with a host pool, which costs nothing until it is written to.
    mode = PREEMPTION_MODE.name
    changes: dict[str, Any] = {"disable_log_stats": True, mode: config.chosen(mode) or "swap"}
    config = dataclasses.replace(config, **changes)
    from ....assembly import build_parts, num_compute_threads
    from ....planning.machine import describe_machine
    from ....planning.measuring import measure_step_times

    num_threads = num_compute_threads()
    if by_cpu_time and num_threads > 1:
        raise ConfigError(
            f"--cpu-time needs one thread, and this process has {num_threads}: "
            "set OMP_NUM_THREADS=1"
        )
    parts = build_parts(config, progress)
    try:
        if by_cpu_time and parts.executor.info.device != "cpu":
            raise ConfigError("--cpu-time cannot measure a GPU; leave it out")
        return measure_step_times(
            parts,
            config,
            machine={**describe_machine(num_threads), "clock": "cpu" if by_cpu_time else "wall"},
            date=datetime.now(UTC).date().isoformat(),
            progress=progress,
            seconds=seconds,
            clock=time.process_time if by_cpu_time else time.perf_counter,
        )
    finally:
        parts.executor.close()


def _show(found: StepTimes, output: Path) -> None:
    model = found.step_time
    print(f"{found.model.name}, {found.model.dtype}, {found.model.device}; {_machine(found)}")
    for count, seconds in model.tokens:
        print(f"  {count:>6} tokens              {seconds * 1e3:10.2f} ms")
    for name, seconds, unit in (
        ("sampled token", model.per_sampled_token, "µs"),
        ("context token of decodes", model.per_context_token, "µs"),
        ("attended pair of prompts", model.per_attended_pair, "µs"),
        ("swapped block", model.per_copied_block, "µs"),
        ("step, engine loop", model.overhead_per_step, "µs"),
        ("request, engine loop", model.overhead_per_request, "µs"),
    ):
        print(f"  per {name:<24}{seconds * 1e6:10.4f} {unit}")
    for step in found.checked:
        print(
            f"  check: {step.name}: measured {step.measured_seconds * 1e3:.1f} ms, "
            f"predicted {step.predicted_seconds * 1e3:.1f} ms"
        )
    print(
        f"median error on {len(found.checked)} kinds of steps that were not fitted: "
        f"{found.median_relative_error:.1%} ({found.num_rounds} rounds)"
    )
    if found.median_spread > MAX_SPREAD:
        print(
            f"warning: the rounds of a step differ by {found.median_spread:.0%}: does the machine "
            "do other work? Measure again when it is quiet, or for longer (--seconds)"
        )
    print(f"written to {output}")


def _machine(found: StepTimes) -> str:
    machine = found.machine
    return f"{machine.get('processor', 'unknown processor')}, {machine.get('threads', '?')} threads"
