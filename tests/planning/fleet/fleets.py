"""Fleets whose steps take times that a reader can add up, for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.core.config import EngineConfig
from tokenmill.planning.fleet.curves import Curve
from tokenmill.planning.fleet.outcome import FleetOutcome
from tokenmill.planning.fleet.run import FleetRun
from tokenmill.planning.fleet.settings import FleetSettings
from tokenmill.planning.fleet.traffic import SyntheticTraffic
from tokenmill.planning.step_time import StepTimes
from tokenmill.planning.workload import PlannedRequest

from ..planning import make_times


def draw(rate: float, duration: float, **fields: Any) -> tuple[PlannedRequest, ...]:
    """Small requests of 5 tenants: of 48 tokens, the first 32 are the tenant's."""
    sizes = {"num_tenants": 5, "prefix_len": 32, "input_len": 16, "output_len": 8, **fields}
    curve = Curve(rate=rate)
    return tuple(SyntheticTraffic(curve=curve, duration=duration, **sizes).requests())


def serve(
    requests: Sequence[PlannedRequest],
    *,
    router: str = "least-loaded",
    times: StepTimes | None = None,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> FleetOutcome:
    """The outcome of the requests with these settings of the fleet."""
    config = EngineConfig(
        disable_log_stats=True, data_parallel_size=2, router=router, **(options or {})
    )
    duration = requests[-1].at
    return FleetRun(
        requests, duration, FleetSettings(**settings), config, times or make_times()
    ).run()
