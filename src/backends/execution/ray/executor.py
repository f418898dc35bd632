"""The executor whose steps are computed by actors of a Ray cluster."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, remove_placement_group

from ....core.errors import DeviceError
from ....core.interfaces import ModelInfo
from ....core.log import get_logger
from ....core.plan import StepPlan, StepResult
from ....core.remote.errors import raised_by
from ....core.remote.logs import ROOT
from ....core.remote.messages import NotStarted
from ..base import ExecutorSpec
from ..workers.answers import LAG_SECONDS, Answer, agree, read_answer
from ..workers.group import LOOPBACK
from ..workers.messages import LOST, RAISED, Begin, Loaded, Rendezvous
from ..workers.watch import Watch
from .link import ActorLink, describe_error, wait_for_logs
from .messages import Node, decode_loaded, decode_rendezvous, encode
from .options import RayOptions
from .placement import reserve, start_workers

CHECK_SECONDS = 0.1
"""Time between two looks at the watch while a step is computed."""
log = get_logger("ray")


class RayExecutor:
    """Computes in Ray actors, one per rank.

    Plans and results travel as msgpack in calls of the actors' methods.
    """

    def __init__(
        self,
        links: Sequence[ActorLink],
        watch: Watch,
        info: ModelInfo,
        leave: Callable[[], None],
    ) -> None:
        """`leave`: gives back what the workers had in the cluster."""
        self.info = info
        self._links, self._watch, self._leave = links, watch, leave

    @classmethod
    def start(
        cls,
        spec: ExecutorSpec,
        options: RayOptions,
        num_gpus: int,
        leave_cluster: Callable[[], None],
    ) -> RayExecutor:
        """Place the workers, and wait until they have loaded the model.

        `num_gpus`: per worker. Raises ConfigError if the cluster has no room, or if the workers
        cannot load the model or differ from the engine.
        """
        with ExitStack() as leaving:
            leaving.callback(leave_cluster)
            group = reserve(spec.config.tensor_parallel_size, options, num_gpus)
            leaving.callback(_release, group)
            links = start_workers(group)
            watch = Watch(links, partial(wait_for_logs, links))
            leaving.callback(watch.close)
            log.info("ray_workers_placed", addresses=[link.node.address for link in links])
            if {link.node.node_id for link in links} == {ray.get_runtime_context().get_node_id()}:
                spec.refuse_too_large()  # elsewhere, each worker checks its own part
            _load(links, watch, spec, options.cpus_per_worker)
            info = agree(spec.identify(), [link.loaded for link in links if link.loaded])
            watch.expect_beats()
            return cls(links, watch, info, leaving.pop_all().close)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The machines and processes of the workers, by rank."""
        return tuple(link.node for link in self._links)

    def launch(self, plan: StepPlan) -> _Step:
        """Send a plan to all workers."""
        message = encode(plan)
        return _Step([link.actor.step.remote(message) for link in self._links], self._finish)

    def health(self) -> str | None:
        """The reason why the workers can compute nothing more, or None."""
        return self._watch.failure

    def close(self) -> None:
        """End the workers, and disconnect from the cluster."""
        self._leave()

    def _finish(self, calls: Sequence[Any]) -> StepResult:
        answers = self._receive(calls)
        results = [read_answer(rank, answer) for rank, answer in enumerate(answers)]
        if any(result.token_ids != results[0].token_ids for result in results):
            reason = "and another worker computed different tokens"
            raise DeviceError(self._watch.fail(self._links[0], reason))
        return results[0]

    def _receive(self, calls: Sequence[Any]) -> list[Answer]:
        """The answers of all workers, in the order of their ranks."""
        num_late_checks = 0
        while True:
            try:
                return list(ray.get(list(calls), timeout=CHECK_SECONDS))
            except GetTimeoutError:
                if self._watch.failure is not None:
                    raise DeviceError(self._watch.failure) from None
            except Exception:
                raise DeviceError(self._lose(calls)) from None
            num_late_checks += self._has_failed(calls)
            if num_late_checks * CHECK_SECONDS >= LAG_SECONDS:
                raise DeviceError(self._give_up(calls))

    def _has_failed(self, calls: Sequence[Any]) -> bool:
        """Whether the step has failed on a rank. Others may then wait forever for its sums."""
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
        try:
            return any(kind in (RAISED, LOST) for kind, _ in ray.get(ready))
        except RayError:  # an actor is lost: the next `get` of all calls raises, too
            return False

    def _give_up(self, calls: Sequence[Any]) -> str:
        _, waiting = ray.wait(list(calls), num_returns=len(calls), timeout=0)
        link = self._links[calls.index(waiting[0])] if waiting else self._links[0]
        return self._watch.fail(link, "waits for a rank whose step has failed")

    def _lose(self, calls: Sequence[Any]) -> str:
        """The reason why a call has raised: its actor is lost."""
        for link, call in zip(self._links, calls, strict=True):
            try:
                ray.get(call, timeout=0)
            except GetTimeoutError:
                continue
            except Exception as error:
                return self._watch.fail(link, link.end(error))
        return self._watch.failure or "the workers are lost"


def _load(
    links: Sequence[ActorLink], watch: Watch, spec: ExecutorSpec, cpus_per_worker: int | None
) -> None:
    """Let all workers load the model. Raises the error of the first one that cannot."""
    exchange = _ask_first(links, "open_exchange") if len(links) > 1 and _share_node(links) else None
    calls = {
        link.actor.load.remote(encode(begin), os.getcwd(), exchange): link
        for link, begin in zip(links, _divide(links, spec, cpus_per_worker), strict=True)
    }
    while calls:
        ready, _ = ray.wait(list(calls), timeout=CHECK_SECONDS)
        while links[0].stages:  # the other ranks load at the same time
            stage = links[0].stages.popleft()
            spec.progress(stage.name, stage.fraction)
        for call in ready:
            link = calls.pop(call)
            link.loaded = _read_loaded(link, call, watch)
        if watch.failure is not None:
            raise DeviceError(f"{watch.failure} while it loaded the model")


def _divide(
    links: Sequence[ActorLink], spec: ExecutorSpec, cpus_per_worker: int | None
) -> Iterator[Begin]:
    """The first message to each worker."""
    rendezvous = _open_rendezvous(links)
    num_on_node = Counter(link.node.node_id for link in links)
    begun: Counter[str] = Counter()
    for link in links:
        node = link.node
        share = max(1, node.num_cores // num_on_node[node.node_id])
        yield Begin(
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
        )
        begun[node.node_id] += 1


def _open_rendezvous(links: Sequence[ActorLink]) -> Rendezvous | None:
    """Open it on the node of rank 0: at its loopback address if all workers are there."""
    if len(links) == 1:
        return None
    host = LOOPBACK if _share_node(links) else links[0].node.address
    return decode_rendezvous(_ask_first(links, "open_rendezvous", host))


def _release(group: PlacementGroup) -> None:
    if ray.is_initialized():
        remove_placement_group(group)


def _share_node(links: Sequence[ActorLink]) -> bool:
    return len({link.node.node_id for link in links}) == 1


def _ask_first(links: Sequence[ActorLink], method: str, *arguments: str) -> Any:
    """Call a method of the actor of rank 0, which the others depend on."""
    try:
        return ray.get(getattr(links[0].actor, method).remote(*arguments))
    except RayError as error:
        raise DeviceError(f"worker 0 fails in {method}: {describe_error(error)}") from error


def _read_loaded(link: ActorLink, call: Any, watch: Watch) -> Loaded:
    try:
        message: Loaded | NotStarted = decode_loaded(ray.get(call))
    except RayError as error:
        reason = watch.fail(link, link.end(error))
        raise DeviceError(f"{reason} while it loaded the model") from error
    if isinstance(message, NotStarted):
        raise raised_by(message)
    return message


@dataclass(frozen=True, slots=True)
class _Step:
    """A launched step."""

    calls: Sequence[Any]
    finish: Callable[[Sequence[Any]], StepResult]

    def result(self) -> StepResult:
        """Wait for the step. Raises WorkerStepError, or DeviceError if a worker is lost."""
        return self.finish(self.calls)
