"""Engines in supervised processes of their own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import EngineConfig
from ..contract.activity import Activity, LiveRequest
from ..contract.client import STALL_SECONDS, EngineClient, Load
from ..contract.explanation import Explanation
from ..contract.plugin_info import HookStats, PluginInfo, add_stats
from ..contract.registry import Replica
from ..contract.trace import Trace
from ..errors import EngineStoppedError
from ..host.calling.guard import Guard
from ..host.metrics.hook_samples import with_hook_stats
from ..host.routing import build_router
from ..interfaces import Progress, Tokenizer, no_progress
from ..processes.place import WHOLE_MACHINE, Place
from ..requests.request_options import RequestOptions
from ..shell.checking import CheckedRequest
from ..shell.engine_shell import CLOSING_SECONDS, EngineShell, Facts, MakeReader
from ..shell.home import Life
from .crash_suspects import CrashSuspects
from .link import EngineLink, EngineSetup
from .replicas import Replicas
from .sending import RequestSender
from .stream import RemoteStream
from .supervisor import TRACE_SECONDS, EngineSupervisor

IDLE_POLL_SECONDS = 0.02
LoadTokenizer = Callable[[EngineConfig], Tokenizer]


def supervised_engine(
    config: EngineConfig, *, make_reader: MakeReader | None = None, **options: Any
) -> EngineShell:
    """Engines in processes of their own, not started yet. `make_reader`: see EngineShell;
    `options`: see SupervisedEngine."""
    return EngineShell(config, SupervisedEngine(config, **options), make_reader=make_reader)


class SupervisedEngine:
    """Runs engines in child processes, and starts another one when one crashes or hangs.

    RunningEngine documents the methods. The tokenizer and the streams live in this process; models,
    plugins and the engines' loops live in the child processes. With several engines (replicas),
    each request goes to one of them. When an engine is lost, another one takes over the requests
    whose readers have received no output yet. All other requests, or all if no engine is left, end
    with EngineStoppedError at once.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        target: str,
        load_tokenizer: LoadTokenizer,
        places: Sequence[Place] = (WHOLE_MACHINE,),
        progress: Progress = no_progress,
        stall_timeout: float = STALL_SECONDS,
        max_restarts: int = 5,
        lost_steps: Path | None = None,
    ) -> None:
        """`target`: function of the child processes, see `processes.child.spawn`. `places`: one per
        engine. `stall_timeout`: see Load.is_stalled. `max_restarts`: maximum number of restarts of
        one engine within ten minutes; at the next failure it is not started again. `lost_steps`:
        see EngineSetup."""
        self._lost_steps = lost_steps
        self._suspects = CrashSuspects()
        self.replicas = Replicas(
            EngineSupervisor(
                self._setup(config, target, Replica(index=index, count=len(places)), place),
                stall_timeout=stall_timeout,
                max_restarts=max_restarts,
            )
            for index, place in enumerate(places)
        )
        self._config = config
        self._load_tokenizer = load_tokenizer
        self._progress = progress
        self.life = Life()
        self.facts: Facts | None = None
        self._sender = RequestSender(
            self.replicas,
            self._suspects,
            is_ending=lambda: self.life.is_ending,
            hashes_prompts=config.enable_prefix_caching,
        )

    def _setup(
        self, config: EngineConfig, target: str, replica: Replica, place: Place
    ) -> EngineSetup:
        index = replica.index
        # Equal requests without a seed must not get equal answers from two engines.
        own = replace(config, seed=config.seed + index)
        return EngineSetup(
            target=target,
            config=own,
            replica=replica,
            place=place,
            suspects=self._suspects,
            lost_steps=self._lost_steps,
            on_loss=lambda: self._sender.forget(index),
            on_lost_request=lambda stream, error: self._sender.rescue(index, stream, error),
        )

    # Start and end

    async def start(self, client: EngineClient) -> None:
        """Start the engines' processes, and load the tokenizer here meanwhile."""
        self._client = client
        if len(self.replicas) > 1:
            self._sender.router = build_router(self._config)
        downloads = self._config.allow_download
        starting = asyncio.create_task(self.replicas.start(self._progress, one_first=downloads))
        if downloads:
            await starting  # the engine downloads the tokenizer's files, too
        loading = asyncio.to_thread(self._load_tokenizer, self._config)
        ready, tokenizer = await asyncio.gather(starting, loading)
        info = min(ready, key=lambda one: one.max_model_len).info
        self.facts = Facts(info=info, tokenizer=tokenizer)

    async def close(self) -> None:
        self.abort(None)
        await self.replicas.close(CLOSING_SECONDS)

    async def wait_idle(self) -> None:
        self.replicas.stop_restarting()
        while any(self.replicas.open_requests()):  # noqa: ASYNC110 (only when the server ends)
            await asyncio.sleep(IDLE_POLL_SECONDS)

    # Requests

    @property
    def max_model_len(self) -> int:
        return self.replicas.max_model_len

    def check_accepting(self) -> None:
        self.life.check_accepting()

    async def queue(
        self, checked: CheckedRequest, prompt: str | None, arrival_time: float
    ) -> RemoteStream:
        """The engine's process notes a time of arrival of its own."""
        checked = replace(checked, options=self._with_free_id(checked.options))
        stream = RemoteStream(prompt=prompt, request=checked, home=self.life.home)
        await self._sender.send(stream)
        return stream

    def abort(self, request_id: str | None) -> None:
        for link, stream in self.replicas.open_requests():
            if request_id in (None, stream.request_id):
                link.end(stream, is_read=True)

    # Reports

    async def refresh(self) -> None:
        await self.replicas.refresh()

    async def reset_prefix_cache(self) -> bool:
        found = await self.replicas.ask(EngineLink.reset_prefix_cache)
        for index, is_empty in found:
            if is_empty:
                self._sender.forget(index)  # a router may remember what the cache had
        if not found:
            raise EngineStoppedError("no engine answers: try again later")
        return len(found) == len(self.replicas) and all(is_empty for _, is_empty in found)

    def load(self) -> Load:
        load, life = self.replicas.load(), self.life
        return replace(
            load,
            is_draining=life.is_draining,
            is_restarting=load.is_restarting and not life.is_ending,
        )

    def live_requests(self) -> tuple[LiveRequest, ...]:
        return self.replicas.live_requests()

    async def explain(self, request_id: str | None, count: int) -> tuple[Explanation, ...]:
        asked = await self.replicas.ask(lambda link: link.explain(request_id, count))
        return tuple(replace(one, engine=index) for index, found in asked for one in found)

    async def activity(self, after_step: int) -> tuple[Activity, ...]:
        asked = await self.replicas.ask(lambda link: link.activity(after_step))
        return tuple(replace(found, engine=index) for index, found in asked)

    async def measure_regions(self, until: float) -> None:
        for _, link in self.replicas.serving():
            link.measure_regions(until)

    async def trace(self, since: float) -> tuple[Trace, ...]:
        asked = await self.replicas.ask(lambda link: link.trace(since), TRACE_SECONDS)
        return tuple(replace(found, engine=index) for index, found in asked)

    @property
    def router_guards(self) -> tuple[Guard, ...]:
        """The guards of the router, which this process calls."""
        router = self._sender.router
        return () if router is None else router.guards

    def plugins(self) -> tuple[PluginInfo, ...]:
        infos, router = self.replicas.plugins(), self._sender.router
        return infos if router is None else router.with_failures(infos)

    def hook_stats(self) -> tuple[HookStats, ...]:
        stats, router = self.replicas.hook_stats(), self._sender.router
        return stats if router is None else add_stats(stats, router.hook_stats())

    def render_metrics(self) -> bytes:
        router = () if self._sender.router is None else self._sender.router.hook_stats()
        return with_hook_stats(
            self.replicas.render_metrics(), (*router, *self.replicas.fatal_hooks()), self._client
        )

    # Inside

    def _with_free_id(self, options: RequestOptions) -> RequestOptions:
        """Options with an id that no other open request has. Each engine makes ids unique only
        among its own requests."""
        wanted = options.request_id
        if len(self.replicas) == 1 or wanted is None or options.prompt_index:
            return options
        taken = {stream.request.options.request_id for _, stream in self.replicas.open_requests()}
        if wanted not in taken:
            return options
        return options.with_changes(request_id=f"{wanted}-{uuid.uuid4().hex[:8]}")
