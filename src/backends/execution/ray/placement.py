"""Places workers on the nodes of a Ray cluster."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ....core.errors import ConfigError, DeviceError
from .actor import WATCH, Worker
from .link import ActorLink, describe_error
from .messages import decode_node
from .options import RayOptions

START_SECONDS = 120.0
"""Time in which Ray must start the processes of all workers."""


def reserve(size: int, options: RayOptions, num_gpus: int) -> PlacementGroup:
    """Reserve room for workers that compute each layer together: `num_gpus` GPUs for each.

    Raises ConfigError if the cluster has no room.
    """
    bundle = {"CPU": float(options.cpus_per_worker or 1)}
    if num_gpus:
        bundle["GPU"] = float(num_gpus)
    group = placement_group([bundle] * size, strategy=options.placement)
    if not group.wait(options.placement_timeout):
        remove_placement_group(group)
        raise ConfigError(_describe_lack(size, bundle, options))
    return group


def _describe_lack(size: int, bundle: dict[str, float], options: RayOptions) -> str:
    free, num_nodes = ray.available_resources(), len(ray.nodes())
    wanted = " and ".join(f"{number:g} {name}" for name, number in bundle.items())
    found = " and ".join(f"{free.get(name, 0):g} {name}" for name in bundle)
    return (
        f"the Ray cluster has no room for {size} workers with {wanted} each, placed by "
        f"{options.placement}: it has {found} free on {num_nodes} nodes. Stop other jobs there, or "
        "change the placement: `tokenmill plugins show ray`"
    )


def start_workers(group: PlacementGroup) -> list[ActorLink]:
    """Start an actor in each part of a group. Ranks of one node are neighbours.

    Raises DeviceError if one does not start.
    """
    actors = [_start_worker(group, index) for index in range(group.bundle_count)]
    try:
        answers = ray.get([actor.describe.remote() for actor in actors], timeout=START_SECONDS)
    except GetTimeoutError:
        raise DeviceError(f"Ray started no worker within {START_SECONDS:g} seconds") from None
    except RayError as error:
        raise DeviceError(f"Ray cannot start the workers: {describe_error(error)}") from error
    found = zip(map(decode_node, answers), actors, strict=True)
    ordered = sorted(found, key=lambda pair: pair[0].node_id)
    return [ActorLink(rank, actor, node) for rank, (node, actor) in enumerate(ordered)]


def _start_worker(group: PlacementGroup, index: int) -> Any:
    part = group.bundle_specs[index]
    place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    make = ray.remote(concurrency_groups={WATCH: 1})(Worker).options(
        num_cpus=part["CPU"],
        num_gpus=part.get("GPU", 0),
        max_restarts=0,  # the engine restarts all workers together
        scheduling_strategy=place,
    )
    return make.remote()
