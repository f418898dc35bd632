"""Places workers on the nodes of a Ray cluster."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ....core.config import EngineConfig
from ....core.errors import DeviceError, UnavailableError
from ....core.log import get_logger
from .actor import WATCH, Worker
from .link import ActorLink, describe_error
from .messages import decode_node
from .options import RayOptions
from .room import describe_lack, find_room

START_SECONDS = 120.0
"""Time in which Ray must start the processes of all workers."""
REPORT_SECONDS = 4.0
"""Time between two log events of a wait for room."""
log = get_logger("ray")


def reserve(config: EngineConfig, options: RayOptions, num_gpus: int) -> PlacementGroup:
    """Reserve room for the workers, with `num_gpus` GPUs for each.

    A bundle, which Ray never divides among nodes, is a stage, or with one stage a worker. Raises
    UnavailableError if the cluster has no room.
    """
    num_stages, per_stage = config.pipeline_parallel_size, config.tensor_parallel_size
    num_bundles, per_bundle = (num_stages, per_stage) if num_stages > 1 else (per_stage, 1)
    bundle = {"CPU": float(per_bundle * (options.cpus_per_worker or 1))}
    if num_gpus:
        bundle["GPU"] = float(per_bundle * num_gpus)
    placement = options.placement or ("SPREAD" if num_stages > 1 else "STRICT_PACK")
    group = placement_group([bundle] * num_bundles, strategy=placement)
    what = f"{num_bundles} {'stages' if num_stages > 1 else 'workers'}"
    end = time.monotonic() + options.placement_timeout
    # Ray waits whole seconds, and rounds down.
    while not group.wait(min(REPORT_SECONDS, max(1.0, end - time.monotonic()))):
        lack = describe_lack(what, bundle, placement, find_room())
        if time.monotonic() >= end:
            remove_placement_group(group)
            raise UnavailableError(
                f"{lack}. Stop other jobs, lower cpus_per_worker, or change the placement: "
                "`tokenmill plugins show ray`"
            )
        log.warning("ray_waits_for_room", reason=lack)
    return group


def start_workers(group: PlacementGroup, size: int) -> list[ActorLink]:
    """Start an actor per rank in a group. Ranks of one stage, and of one node, are neighbours.

    Raises DeviceError if one does not start.
    """
    per_bundle = size // group.bundle_count
    actors = [_start_worker(group, rank // per_bundle, per_bundle) for rank in range(size)]
    try:
        answers = ray.get([actor.describe.remote() for actor in actors], timeout=START_SECONDS)
    except GetTimeoutError:
        raise DeviceError(
            f"Ray did not start all {size} workers within {START_SECONDS:g} seconds: see its logs "
            "in /tmp/ray/session_latest/logs"
        ) from None
    except RayError as error:
        raise DeviceError(f"Ray cannot start the workers: {describe_error(error)}") from error
    found = zip(map(decode_node, answers), actors, strict=True)
    ordered = sorted(found, key=lambda pair: pair[0].node_id)  # keeps stages together
    return [ActorLink(rank, actor, node) for rank, (node, actor) in enumerate(ordered)]


def _start_worker(group: PlacementGroup, index: int, per_bundle: int) -> Any:
    bundle = group.bundle_specs[index]
    place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    make = ray.remote(concurrency_groups={WATCH: 1})(Worker).options(
        num_cpus=bundle["CPU"] / per_bundle,
        num_gpus=bundle.get("GPU", 0) / per_bundle,
        max_restarts=0,  # the engine restarts all workers together
        scheduling_strategy=place,
    )
    return make.remote()
