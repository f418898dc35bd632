"""The executor whose steps are computed by actors of a Ray cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from ....core.interfaces import ModelInfo
from ....core.log import get_logger
from ....core.plan import StepPlan, StepResult
from ....core.requests.media import MediaItem
from ..base import ExecutorSpec
from ..workers.answers import LAG_SECONDS, Answer, RankAnswers, agree, describe_failures
from ..workers.watch import Watch
from .link import CHECK_SECONDS, ActorLink, wait_for_logs
from .loading import load
from .messages import Node, encode
from .nodes import find_head, find_lost_node, find_raylets, watch_head
from .options import RayOptions
from .placement import reserve, start_workers

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
        self._answers = RankAnswers(links, watch, info.num_stages)

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
            group = reserve(spec.config, options, num_gpus)
            leaving.callback(_release, group)
            links = start_workers(group, spec.config.num_ranks)
            head = find_head()
            find_lost = partial(find_lost_node, links, find_raylets(links), head)
            watch = Watch(links, partial(wait_for_logs, links), find_lost)
            leaving.callback(watch.close)
            is_over, lose = threading.Event(), partial(watch.fail, links[0], "lost the head")
            leaving.callback(is_over.set)
            threading.Thread(target=watch_head, args=(head, is_over, lose), daemon=True).start()
            log.info("ray_workers_placed", addresses=[link.node.address for link in links])
            if {link.node.node_id for link in links} == {ray.get_runtime_context().get_node_id()}:
                spec.refuse_too_large()  # elsewhere, each worker checks its own part
            loaded = load(links, watch, spec, options.cpus_per_worker, num_gpus)
            places = [link.place for link in links]
            info = agree(spec.identify(), loaded, spec.config.pipeline_parallel_size, places)
            watch.expect_beats()
            return cls(links, watch, info, leaving.pop_all().close)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The machines and processes of the workers, by rank."""
        return tuple(link.node for link in self._links)

    def launch(self, plan: StepPlan) -> _Step:
        message, results = encode(plan), self._answers.take_results()
        num_early = self._answers.num_early
        calls = [link.actor.step.remote(message, *results) for link in self._links[:num_early]]
        calls += [link.actor.step.remote(message) for link in self._links[num_early:]]
        return _Step(calls, self._finish)

    def take_media(self, items: Sequence[MediaItem]) -> None:
        """Send items to the ranks of the first stage; see TakesMedia."""
        for item in map(ray.put, map(encode, items)):
            for link in self._links[: len(self._links) // self.info.num_stages]:
                link.actor.take_item.remote(item)

    def health(self) -> str | None:
        """The reason why the workers can compute nothing more, or None."""
        return self._watch.failure

    def close(self) -> None:
        """End the workers, and disconnect from the cluster."""
        self._leave()

    def _finish(self, calls: Sequence[Any]) -> StepResult:
        return self._answers.finish(self._receive(calls))

    def _receive(self, calls: Sequence[Any]) -> list[Answer]:
        """The answers of all workers, in the order of their ranks."""
        # Futures, because a call into Ray may block for long when its cluster is lost.
        answers: list[Future[Answer]] = [call.future() for call in calls]
        num_late_checks = 0
        while True:
            _, waiting = wait(answers, CHECK_SECONDS, FIRST_EXCEPTION)
            ready = [rank for rank, answer in enumerate(answers) if answer not in waiting]
            for rank in ready:
                if (error := answers[rank].exception()) is not None:
                    link = self._links[rank]
                    raise self._watch.fail(link, link.end(error))
            # First: workers still answer when only the head of the cluster is lost.
            if self._watch.failure is not None:
                raise self._watch.error()
            if not waiting:
                return [answer.result() for answer in answers]
            # The others may wait forever for the sums of ranks that have failed.
            if failures := describe_failures(ready, [answers[rank].result() for rank in ready]):
                num_late_checks += 1
                if num_late_checks * CHECK_SECONDS >= LAG_SECONDS:
                    late = self._links[min(set(range(len(answers))) - set(ready))]
                    raise self._watch.fail(late, f"waits for {failures}")


def _release(group: PlacementGroup) -> None:
    if ray.is_initialized():
        remove_placement_group(group)


@dataclass(frozen=True, slots=True)
class _Step:
    calls: Sequence[Any]
    finish: Callable[[Sequence[Any]], StepResult]

    def result(self) -> StepResult:
        """Wait for the step. Raises WorkerStepError, or DeviceError if a worker is lost."""
        return self.finish(self.calls)
