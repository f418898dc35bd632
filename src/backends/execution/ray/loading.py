"""Lets actors load the model, each its own part."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from ....core.errors import DeviceError
from ....core.processes.channels.messages import NotStarted
from ....core.processes.channels.refusals import raised_by
from ....core.processes.logs import ROOT
from ....core.processes.place import WHOLE_MACHINE, Place
from ...machine.places import GPUS
from ..base import ExecutorSpec
from ..workers.group import LOOPBACK
from ..workers.messages import Loaded, Rendezvous, StartRank
from ..workers.watch import Watch
from .link import CHECK_SECONDS, ActorLink, describe_error
from .messages import decode_loaded, decode_rendezvous, encode


def load(
    links: Sequence[ActorLink],
    watch: Watch,
    spec: ExecutorSpec,
    cpus_per_worker: int | None,
    num_gpus: int,
) -> list[Loaded]:
    """Let all workers load the model. `num_gpus`: that Ray has reserved for each. Raises the error
    of the first one that cannot."""
    # Ray hides no GPU from a worker that has reserved none.
    place = WHOLE_MACHINE if num_gpus else Place(environment={GPUS: ""})
    messages = list(_divide(links, spec, cpus_per_worker, place))
    exchanges = _open_exchanges(links, spec.config.tensor_parallel_size)
    calls = {
        link.actor.load.remote(encode(start), os.getcwd(), exchange): link
        for link, start, exchange in zip(links, messages, exchanges, strict=True)
    }
    loaded: dict[int, Loaded] = {}
    while calls:
        ready, _ = ray.wait(list(calls), timeout=CHECK_SECONDS)
        while links[0].stages:  # the other ranks load at the same time
            stage = links[0].stages.popleft()
            spec.progress(stage.name, stage.fraction)
        for call in ready:
            link = calls.pop(call)
            loaded[link.rank] = _read_loaded(link, call, watch)
        if watch.failure is not None:
            raise DeviceError(f"{watch.failure} while the model was loaded")
    return [loaded[link.rank] for link in links]


def _divide(
    links: Sequence[ActorLink], spec: ExecutorSpec, cpus_per_worker: int | None, place: Place
) -> Iterator[StartRank]:
    """The first message to each worker."""
    rendezvous = _open_rendezvous(links)
    num_on_node = Counter(link.node.node_id for link in links)
    begun: Counter[str] = Counter()
    for link in links:
        node = link.node
        share = max(1, node.num_cores // num_on_node[node.node_id])
        yield StartRank(
            rank=link.rank,
            size=len(links),
            local_rank=begun[node.node_id],
            local_size=num_on_node[node.node_id],
            rendezvous=rendezvous,
            exchange=None,  # a number of the actor's own, see Worker.load
            num_threads=cpus_per_worker or share,
            load_rank=spec.load_rank,
            config=spec.config,
            log_level=logging.getLogger(ROOT).getEffectiveLevel(),
            place=place,
        )
        begun[node.node_id] += 1


def _open_rendezvous(links: Sequence[ActorLink]) -> Rendezvous | None:
    """Open it on the node of rank 0: at its loopback address if all workers are there."""
    if len(links) == 1:
        return None
    host = LOOPBACK if _share_node(links) else links[0].node.address
    return decode_rendezvous(_ask(links[0], "open_rendezvous", host))


def _open_exchanges(links: Sequence[ActorLink], per_stage: int) -> Iterator[str | None]:
    """Per rank, the file through which the ranks of its stage add up their sums. None: the stage
    has one rank, or several nodes."""
    for first in range(0, len(links), per_stage):
        stage = links[first : first + per_stage]
        can_share = per_stage > 1 and _share_node(stage)
        yield from [_ask(stage[0], "open_exchange") if can_share else None] * per_stage


def _share_node(links: Sequence[ActorLink]) -> bool:
    return len({link.node.node_id for link in links}) == 1


def _ask(link: ActorLink, method: str, *arguments: str) -> Any:
    """Call a method of an actor that others depend on."""
    try:
        return ray.get(getattr(link.actor, method).remote(*arguments))
    except RayError as error:
        reason = describe_error(error)
        where = f"worker {link.rank}{link.place}"
        raise DeviceError(f"{where} ended while the workers connected: {reason}") from error


def _read_loaded(link: ActorLink, call: Any, watch: Watch) -> Loaded:
    try:
        message: Loaded | NotStarted = decode_loaded(ray.get(call))
    except RayError as error:
        reason = watch.fail(link, link.end(error))
        raise DeviceError(f"{reason} while the model was loaded") from error
    if isinstance(message, NotStarted):
        where = f"worker {link.rank}{link.place}"
        raise raised_by(NotStarted(message.error, f"{where}: {message.text}"))
    return message
