"""All engine processes of one server: starts and ends them, and joins their load and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from structlog.contextvars import bind_contextvars

from ..contract.activity import LiveRequest
from ..contract.client import Load
from ..contract.plugin_info import HookStats, PluginInfo, add_stats
from ..interfaces import Progress, no_progress
from .engine_label import join_metrics
from .link import IDLE, EngineLink
from .messages import Ready
from .stream import RemoteStream
from .supervisor import ANSWER_SECONDS, EngineSupervisor

T = TypeVar("T")


class Replicas:
    """All engines of a server. Each has a supervisor, which restarts it."""

    def __init__(self, supervisors: Iterable[EngineSupervisor]) -> None:
        self.supervisors = tuple(supervisors)

    def __len__(self) -> int:
        return len(self.supervisors)

    # Start and end

    async def start(self, progress: Progress, *, one_first: bool) -> tuple[Ready, ...]:
        """Start all engines. `progress` gets the stages of the first one. With `one_first`, the
        others start when the first one is ready, because it may download the model for all.

        Raises what the start of an engine raises.
        """
        ready: list[Ready] = []
        indexes = range(len(self))
        try:
            for group_indexes in (indexes[:1], indexes[1:]) if one_first else (indexes,):
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._start(i, progress)) for i in group_indexes]
                ready += [task.result() for task in tasks]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return tuple(ready)

    async def _start(self, index: int, progress: Progress) -> Ready:
        """Start one engine, in a task of its own: with several engines, log events of this task and
        of those that it starts have the engine's index."""
        if len(self) > 1:
            bind_contextvars(engine=index)
        return await self.supervisors[index].start(progress if index == 0 else no_progress)

    async def close(self, patience: float) -> None:
        """End all engines, within `patience` seconds if they do not hang."""
        await asyncio.gather(*(one.close(patience) for one in self.supervisors))

    def stop_restarting(self) -> None:
        """From now on, do not start an engine again when it is lost."""
        for one in self.supervisors:
            one.restarts_engines = False

    @property
    def failure(self) -> str | None:
        """Why no engine serves and none will be started again; None if any serves or will."""
        failures = [one.failure for one in self.supervisors]
        return failures[-1] if all(failures) else None

    async def wait_given_up(self) -> None:
        """Wait until `failure` is set."""
        await asyncio.gather(*(one.given_up.wait() for one in self.supervisors))

    # Requests

    def serving(self) -> list[tuple[int, EngineLink]]:
        links = enumerate(one.ready_link for one in self.supervisors)
        return [(index, link) for index, link in links if link is not None]

    def open_requests(self) -> Iterator[tuple[EngineLink, RemoteStream]]:
        for _, link in self.serving():
            for stream in tuple(link.open_requests.values()):
                yield link, stream

    # Reports

    @property
    def max_model_len(self) -> int:
        """The context of the engine that has the shortest one."""
        return min(one.max_model_len for one in self.supervisors)

    async def refresh(self) -> None:
        """Get new reports from the engines that do not hang."""
        await asyncio.gather(*(one.refresh() for one in self.supervisors))

    async def ask(
        self, question: Callable[[EngineLink], Awaitable[T]], limit: float = ANSWER_SECONDS
    ) -> list[tuple[int, T]]:
        """The answers of the engines that serve and do not hang, each with its engine's index."""
        indexes = [index for index, _ in self.serving()]
        asked = (self.supervisors[index].ask(question, limit) for index in indexes)
        answers = zip(indexes, await asyncio.gather(*asked), strict=True)
        return [(index, one) for index, one in answers if one is not None]

    def load(self) -> Load:
        loads = [_load_of(one) for one in self.supervisors]
        return loads[0] if len(loads) == 1 else join_loads(loads)

    def live_requests(self) -> tuple[LiveRequest, ...]:
        """The requests of all engines that serve, in order of arrival."""
        found = [
            replace(request, engine=index)
            for index, _ in self.serving()
            for request in self.supervisors[index].report.requests
        ]
        return tuple(sorted(found, key=lambda request: -request.age))

    def plugins(self) -> tuple[PluginInfo, ...]:
        """The plugins, which are the same in all engines, with their failures in all of them."""
        reports = [found for one in self.supervisors if (found := one.plugins())]
        return tuple(map(_join_plugin, zip(*reports, strict=False)))

    def hook_stats(self) -> tuple[HookStats, ...]:
        return add_stats(*(one.hook_stats() for one in self.supervisors))

    def fatal_hooks(self) -> tuple[HookStats, ...]:
        """The hooks that ended engines. The engines' own metrics do not have these failures."""
        return add_stats(*(one.fatal_hooks for one in self.supervisors))

    def render_metrics(self) -> bytes:
        """The metrics of all engines; with several, each sample has the label `engine`."""
        texts = {str(i): one.render_metrics() for i, one in enumerate(self.supervisors)}
        return texts["0"] if len(texts) == 1 else join_metrics(texts)


def _load_of(one: EngineSupervisor) -> Load:
    if (link := one.ready_link) is not None:
        return one.load_of(link)
    return replace(IDLE, is_alive=False, is_restarting=one.failure is None)


def join_loads(loads: Sequence[Load]) -> Load:
    """The load of several engines together. They are alive if any engine serves, and stalled if
    all engines that serve are stalled."""
    serving = [load for load in loads if load.is_alive]
    calmest = min(serving, key=lambda load: load.stalled_for, default=IDLE)
    return replace(
        calmest,
        num_running=sum(load.num_running for load in serving),
        num_waiting=sum(load.num_waiting for load in serving),
        kv_cache_usage=sum(load.kv_cache_usage for load in serving) / max(1, len(serving)),
        is_alive=bool(serving),
        is_restarting=not serving and any(load.is_restarting for load in loads),
        replicas=tuple(loads),
    )


def _join_plugin(infos: Sequence[PluginInfo]) -> PluginInfo:
    """One plugin of all engines. It counts as failed if it failed in any of them."""
    shown = next((info for info in infos if info.state == "failed"), infos[0])
    return replace(shown, failures=sum(info.failures for info in infos))
