"""`tokenmill simulate fleet`: many replicas behind a router, in virtual time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .....core.config import EngineConfig
from .....core.errors import ConfigError
from ...flags.engine import add_engine_flags, engine_config, given_settings
from ...progress import ProgressDisplay
from ..compare import LEFT_OUT
from ..comparison import describe, describe_times
from ..vary import Settings, vary
from .flags import Draw, add_fleet_flags, read_load, read_settings
from .report import Column, print_json, print_tables

if TYPE_CHECKING:
    from .....planning.fleet.outcome import FleetOutcome
    from .....planning.fleet.settings import FleetSettings
    from .....planning.step_time import StepTimes

DEFAULT_ROUTERS = "least-loaded,prefix-aware"
VARIED = tuple(name for name in LEFT_OUT if name != "router")


def add_fleet_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "fleet",
        help="compare routers and numbers of replicas, with losses, updates and an autoscaler",
        description="Run 1 to 1,024 replicas of the real engine behind the real routers, on a "
        "virtual clock. No model is computed: the duration of each step comes from `tokenmill "
        "simulate measure`.",
        examples=(
            "tokenmill simulate fleet --replicas 8 --request-rate 4",
            "tokenmill simulate fleet --find-replicas --request-rate 20 --goodput ttft:1000",
            "tokenmill simulate fleet --replicas 32 --lose 300=0-7 --html fleet.html",
        ),
    )
    parser.add_argument("--step-time", type=Path, metavar="PATH",
                        help="file from `tokenmill simulate measure` (default: step times of the "
                        "default model, measured on another machine)")  # fmt: skip
    parser.add_argument("--router", metavar="LIST", help="routers to compare "
                        f"(default: {DEFAULT_ROUTERS}; with --vary: the server's)")  # fmt: skip
    parser.add_argument("--vary", action="append", metavar="KEY=A,B,C", default=[],
                        help="engine setting and its values to compare; may be repeated, "
                        "then all combinations are run")  # fmt: skip
    parser.add_argument("--goodput", nargs="+", metavar="NAME:MS",
                        help="limits that a good request keeps, of ttft, tpot and e2el in "
                        "milliseconds (default: ttft:2000)")  # fmt: skip
    parser.add_argument("--find-replicas", action="store_true",
                        help="find the smallest number of replicas that is enough")  # fmt: skip
    parser.add_argument("--goal", type=float, default=0.99, metavar="N",
                        help="fraction of requests that must be good for --find-replicas "
                        "(default: 0.99)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="PATH", help="also write a report as one page")
    add_fleet_flags(parser)
    add_engine_flags(parser, leave_out=LEFT_OUT)
    parser.set_defaults(run=_run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runner:
    """Runs one load, for any policy and number of replicas."""

    draw: Draw
    duration: float
    base: EngineConfig
    times: StepTimes

    def run(
        self,
        policy: Settings,
        settings: FleetSettings,
        examples: dict[str, str],
        progress: Callable[[float], None],
    ) -> FleetOutcome:
        """Serve the load. `examples`: gets the first message of each kind of failure."""
        from .....planning.fleet.run import FleetRun

        is_one = settings.num_replicas == 1 and not settings.autoscaler
        changed: dict[str, Any] = {**policy, "data_parallel_size": 1 if is_one else 2}
        if is_one:
            changed.pop("router", None)
        config = replace(self.base, disable_log_stats=True, **changed)
        run = FleetRun(self.draw(), self.duration, settings, config, self.times)
        outcome = run.run(progress)
        examples.update(run.examples)
        return outcome


def _run(args: argparse.Namespace) -> int:
    from .....planning.step_time import bundled_step_times, read_step_times

    times = read_step_times(args.step_time) if args.step_time else bundled_step_times()
    settings = read_settings(args)
    draw, duration = read_load(args)
    policies = _policies(args)
    if args.find_replicas and (settings.autoscaler or settings.losses):
        raise ConfigError("--find-replicas takes no --autoscale and no --lose: remove them")
    runner = _Runner(draw=draw, duration=duration, base=engine_config(args), times=times)
    if args.step_time is None:
        print(f"warning: {describe_times(times, None)}", file=sys.stderr)
    with ProgressDisplay() as progress:
        if args.find_replicas:
            columns = [_find(args, runner, one, settings, progress) for one in policies]
        else:
            cases = [(one, case) for one in policies for case in _cases(settings)]
            columns = [_one(runner, one, case, progress) for one, case in cases]
    load = _describe_load(args, duration, columns)
    source = describe_times(times, args.step_time)
    print_json(load, source, columns) if args.json else print_tables(load, source, columns)
    if args.html is not None:
        from .page import write_page

        write_page(args.html, load, source, columns)
    return 0


def _policies(args: argparse.Namespace) -> list[Settings]:
    """All combinations of routers and settings to compare."""
    routers, args.router = args.router, None
    if routers is None and not args.vary:
        routers = DEFAULT_ROUTERS
    texts = [f"router={routers}"] if routers else []
    return vary([*texts, *args.vary], given_settings(args), leave_out=VARIED)


def _cases(settings: FleetSettings) -> list[tuple[FleetSettings, str]]:
    """The fleet, and the same one without its losses, which shows what they cost; with a remark for
    the display of progress."""
    if not settings.losses:
        return [(settings, "")]
    return [(settings, ", with losses"), (replace(settings, losses=()), ", without losses")]


def _one(
    runner: _Runner,
    policy: Settings,
    case: tuple[FleetSettings, str],
    progress: ProgressDisplay,
) -> Column:
    examples: dict[str, str] = {}
    settings, remark = case
    stage = f"simulating {describe(policy)}{remark}"
    outcome = runner.run(policy, settings, examples, partial(progress, stage))
    return Column(
        policy=policy,
        num_replicas=settings.num_replicas,
        num_lost=sum(loss.last - loss.first + 1 for loss in settings.losses),
        outcome=outcome,
        examples=examples,
    )


def _find(
    args: argparse.Namespace,
    runner: _Runner,
    policy: Settings,
    settings: FleetSettings,
    progress: ProgressDisplay,
) -> Column:
    from .....planning.fleet.search import find_replicas

    examples: dict[str, str] = {}

    def run(number: int) -> FleetOutcome:
        stage = f"simulating {describe(policy)} with {number}"
        sized = replace(settings, num_replicas=number)
        return runner.run(policy, sized, examples, partial(progress, stage))

    found = find_replicas(run, args.goal, args.max_replicas)
    return Column(
        policy=policy,
        num_replicas=found.num_replicas,
        num_lost=0,
        outcome=found.outcome,
        examples=examples,
        tried=found.tried,
    )


def _describe_load(
    args: argparse.Namespace, duration: float, columns: list[Column]
) -> Mapping[str, Any]:
    return {
        "num_requests": columns[0].outcome.num_requests,
        "duration": duration,
        "arrivals": str(args.workload) if args.workload else args.arrivals,
        "seed": args.seed,
        "limits": args.goodput or ["ttft:2000"],
        "goal": args.goal if args.find_replicas else None,
    }
