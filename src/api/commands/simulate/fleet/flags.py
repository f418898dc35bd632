"""Flags of a fleet: its load, its replicas and what happens to them."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .....core.errors import ConfigError

if TYPE_CHECKING:
    from .....planning.fleet.settings import Autoscaler, FleetSettings, Loss
    from .....planning.workload import PlannedRequest

Draw = Callable[[], "Iterable[PlannedRequest]"]
"""Makes the requests of a run, the same at each call."""
DEFAULT_LIMIT = ["ttft:2000"]
_CURVE = {
    "request_rate": (float, 1.0, "requests per second for the whole fleet, on average"),
    "period": (float, None, "seconds between two bursts (default: 300), or of a day (86400)"),
    "burst_factor": (
        float,
        5.0,
        "bursts: rate in the first tenth of a period, by that in the rest",
    ),
    "swing": (float, 0.8, "day: fraction by which the peak is above the average"),
    "noise": (float, 0.1, "day: standard deviation of the rate from minute to minute, a fraction"),
}
_TRAFFIC = {
    "tenants": (int, 20, "number of tenants; number k sends in proportion to 1 / k"),
    "prefix_len": (int, 256, "tokens with which all prompts of a tenant begin"),
    "input_len": (int, 256, "further tokens of a prompt, on average"),
    "output_len": (int, 64, "tokens that a request generates, on average"),
    "range_ratio": (float, 0.5, "lengths vary by this fraction of the average, in [0, 1)"),
}
_REPLICAS = {
    "replicas": (int, 4, "number of replicas at the beginning"),
    "start_seconds": (float, 60.0, "from the start of a replica to its first request"),
    "detection_seconds": (float, 0.1, "from the death of a replica until the router knows"),
    "update_at": (float, None, "time of a rolling update: each replica drains and starts again"),
    "min_replicas": (int, 1, "minimum of --autoscale"),
    "max_replicas": (int, 1024, "maximum of --autoscale and --find-replicas"),
    "scale_interval": (float, 15.0, "seconds between two decisions of --autoscale"),
    "scale_down_seconds": (float, 300.0, "seconds of low load before replicas are removed"),
}


def add_fleet_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of the load and of the replicas."""
    load = parser.add_argument_group("load", "synthetic tenants, or recorded requests")
    load.add_argument("--workload", type=Path, metavar="PATH", help="file of recorded requests "
                      "with arrival times, see docs/simulate.md")  # fmt: skip
    load.add_argument("--arrivals", choices=("constant", "bursts", "day"), default="constant",
                      help="how the rate changes (default: constant)")  # fmt: skip
    load.add_argument("--duration", type=float, default=600.0, metavar="SECONDS",
                      help="seconds in which requests arrive (default: 600)")  # fmt: skip
    _add(load, _CURVE)
    _add(load, _TRAFFIC)
    load.add_argument("--seed", type=int, default=0, metavar="N",
                      help="seed of all random numbers (default: 0)")  # fmt: skip
    fleet = parser.add_argument_group("fleet", "the replicas, and what happens to them")
    _add(fleet, _REPLICAS)
    fleet.add_argument("--lose", action="append", metavar="TEXT", default=[],
                       help="replicas that die: TIME=FIRST-LAST:AWAY, as 300=0-7; they come back "
                       "after AWAY seconds and a start; may be repeated")  # fmt: skip
    fleet.add_argument("--autoscale", metavar="KEY=VALUE",
                       help="add and remove replicas: requests=N open ones per replica, or kv=F of "
                       "its KV cache")  # fmt: skip


def _add(group: Any, rows: Mapping[str, tuple[type, Any, str]]) -> None:
    for name, (kind, default, text) in rows.items():
        shown = "" if default is None else f" (default: {default})"
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, metavar="N",
                           help=f"{text}{shown}")  # fmt: skip


def read_load(args: argparse.Namespace) -> tuple[Draw, float]:
    """The requests, and the seconds in which they arrive. Raises ConfigError."""
    from .....planning.fleet.curves import Curve
    from .....planning.fleet.traffic import SyntheticTraffic
    from .....planning.workload_file import read_workload

    if args.workload is not None:
        recorded = read_workload(args.workload, args.seed)
        if not recorded.has_arrivals:
            raise ConfigError(f"workload {args.workload} needs arrival times (at) for a fleet")
        if recorded.ignored_fields:
            ignored = ", ".join(recorded.ignored_fields)
            print(f"note: {args.workload}: ignored fields: {ignored}", file=sys.stderr)
        return lambda: recorded.requests, recorded.requests[-1].at
    curve = Curve(
        name=args.arrivals,
        rate=args.request_rate,
        period=args.period,
        swing=args.swing,
        noise=args.noise,
        burst_factor=args.burst_factor,
    )
    traffic = SyntheticTraffic(
        curve=curve,
        duration=args.duration,
        num_tenants=args.tenants,
        prefix_len=args.prefix_len,
        input_len=args.input_len,
        output_len=args.output_len,
        range_ratio=args.range_ratio,
        seed=args.seed,
    )
    return traffic.requests, traffic.duration


def read_settings(args: argparse.Namespace) -> FleetSettings:
    """The replicas, and what happens to them. Raises ConfigError."""
    from .....bench.reports.figures import parse_limits
    from .....planning.fleet.settings import FleetSettings

    return FleetSettings(
        num_replicas=args.replicas,
        start_seconds=args.start_seconds,
        detection_seconds=args.detection_seconds,
        losses=tuple(map(_loss, args.lose)),
        update_at=args.update_at,
        autoscaler=_autoscaler(args),
        limits_ms=parse_limits(args.goodput or DEFAULT_LIMIT, ("ttft", "tpot", "e2el")),
    )


def _loss(text: str) -> Loss:
    """A loss from "300=0-7:120": replicas 0 to 7 die at 300 s, and their machines are back 120 s
    later."""
    from .....planning.fleet.settings import Loss

    at, _, rest = text.partition("=")
    indexes, _, away = rest.partition(":")
    first, _, last = indexes.partition("-")
    try:
        return Loss(at=float(at), first=int(first), last=int(last or first), away=float(away or 0))
    except ValueError:
        raise ConfigError(
            f"--lose must be TIME=FIRST-LAST or TIME=FIRST-LAST:SECONDS, got {text!r}"
        ) from None


def _autoscaler(args: argparse.Namespace) -> Autoscaler | None:
    from .....planning.fleet.settings import Autoscaler

    if args.autoscale is None:
        return None
    metric, _, target = args.autoscale.partition("=")
    try:
        wanted = float(target)
    except ValueError:
        wanted = math.nan
    return Autoscaler(
        metric=metric,
        target=wanted,
        lowest=args.min_replicas,
        highest=args.max_replicas,
        interval=args.scale_interval,
        patience=args.scale_down_seconds,
    )
