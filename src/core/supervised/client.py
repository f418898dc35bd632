"""Engines in supervised processes of their own, with the interface of one in this process."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from ..config import EngineConfig
from ..contract.client import STALL_SECONDS, EngineClient, LiveRequest, Load
from ..contract.plugin_info import HookStats, PluginInfo, add_stats
from ..errors import EngineStoppedError
from ..host.calling.guard import Guard
from ..host.metrics.hook_samples import with_hook_stats
from ..host.routing import build_router
from ..interfaces import ModelInfo, Progress, Tokenizer, no_progress
from ..processes.place import WHOLE_MACHINE, Place
from ..request_options import RequestOptions
from ..sampling_params import SamplingParams
from ..shell.checking import check
from ..shell.engine_shell import CLOSED, CLOSING_SECONDS, DRAINING
from ..shell.home import Home
from ..shell.sampling_defaults import default_sampling_params
from ..shell.unused_settings import log_unused
from .crash_suspects import CrashSuspects
from .link import EngineSetup
from .messages import Ready
from .replicas import Replicas
from .sending import RequestSender
from .stream import RemoteStream
from .supervisor import EngineSupervisor

IDLE_POLL_SECONDS = 0.02
LoadTokenizer = Callable[[EngineConfig], Tokenizer]


class SupervisedEngine(EngineClient):
    """Runs engines in child processes, and starts another one when one crashes or hangs.

    EngineClient documents the methods. The tokenizer and the streams live in this process; models,
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
    ) -> None:
        """`target`: function of the child processes, see `processes.child.spawn`. `places`: one per
        engine. `stall_timeout`: see Load.is_stalled. `max_restarts`: maximum number of restarts of
        one engine within ten minutes; at the next failure it is not started again."""
        self._suspects = CrashSuspects()
        self.replicas = Replicas(
            EngineSupervisor(
                self._setup(config, target, index, place),
                stall_timeout=stall_timeout,
                max_restarts=max_restarts,
            )
            for index, place in enumerate(places)
        )
        self._config = config
        self._load_tokenizer = load_tokenizer
        self._progress = progress
        self._home = Home()
        self._parts: tuple[Ready, Tokenizer] | None = None
        self._sender = RequestSender(
            self.replicas,
            self._suspects,
            is_ending=lambda: self._is_draining or self._is_closed,
            hashes_prompts=config.enable_prefix_caching,
        )
        self._is_draining = False
        self._is_closed = False

    def _setup(self, config: EngineConfig, target: str, index: int, place: Place) -> EngineSetup:
        # Equal requests without a seed must not get equal answers from two engines.
        own = replace(config, seed=config.seed + index)
        return EngineSetup(
            target=target,
            config=own,
            place=place,
            suspects=self._suspects,
            on_loss=lambda: self._sender.forget(index),
            on_lost_request=lambda stream, error: self._sender.rescue(index, stream, error),
        )

    # Start and end

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the engines' processes, and load the tokenizer here meanwhile.

        Raises ConfigError when the configuration, the model or a plugin cannot work.
        """
        self._home.enter()
        if self._is_closed:
            raise EngineStoppedError(CLOSED)
        if self._parts is not None:
            return
        if len(self.replicas) > 1:
            self._sender.router = build_router(self._config)
        downloads = self._config.allow_download
        starting = asyncio.create_task(self.replicas.start(self._progress, one_first=downloads))
        try:
            if downloads:
                await starting  # the engine downloads the tokenizer's files, too
            loading = asyncio.to_thread(self._load_tokenizer, self._config)
            ready, tokenizer = await asyncio.gather(starting, loading)
        except BaseException:
            await self.close()
            raise
        self._parts = min(ready, key=lambda one: one.max_model_len), tokenizer
        log_unused(self._config, self.info)

    async def drain(self, timeout: float | None = None) -> None:
        self._home.check()
        self._is_draining = True
        self.replicas.stop_restarting()
        try:
            await asyncio.wait_for(self._wait_idle(), timeout)
        except TimeoutError:
            self._end()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wait_idle(), CLOSING_SECONDS)

    async def close(self) -> None:
        if not self._is_closed:
            self._home.check()
            self._is_closed = True
            self._end()
            await self.replicas.close(CLOSING_SECONDS)

    # What callers see

    @property
    def is_started(self) -> bool:
        return self._parts is not None and not self._is_closed

    @property
    def config(self) -> EngineConfig:
        return self._config

    @property
    def info(self) -> ModelInfo:
        return self._started()[0].info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._started()[1]

    @property
    def max_model_len(self) -> int:
        self._started()
        return self.replicas.max_model_len

    @property
    def model_name(self) -> str:
        return self._config.served_model_name or self.info.name

    def default_sampling_params(self, **given: Any) -> SamplingParams:
        return default_sampling_params(self._config, self.info, given)

    async def submit(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        **fields: Any,
    ) -> RemoteStream:
        self._home.check()
        self._check_accepting()
        options = (options or RequestOptions()).with_changes(**fields)
        checked = await check(
            prompt,
            sampling_params or self.default_sampling_params(),
            options,
            tokenizer=self.tokenizer,
            info=self.info,
            config=self._config,
            max_model_len=self.max_model_len,
        )
        checked = replace(checked, options=self._with_free_id(options))
        stream = RemoteStream(
            prompt=prompt if isinstance(prompt, str) else None, request=checked, home=self._home
        )
        await self._sender.send(stream)
        return stream

    async def abort(self, request_id: str) -> None:
        self._home.check()
        self._end(request_id)

    async def refresh(self) -> None:
        self._home.check()
        await self.replicas.refresh()

    def load(self) -> Load:
        load, ends = self.replicas.load(), self._is_draining or self._is_closed
        return replace(
            load,
            is_draining=self._is_draining,
            is_restarting=load.is_restarting and not ends,
        )

    def live_requests(self) -> tuple[LiveRequest, ...]:
        return self.replicas.live_requests()

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
            self.replicas.render_metrics(), (*router, *self.replicas.fatal_hooks()), self
        )

    # Inside

    def _started(self) -> tuple[Ready, Tokenizer]:
        if self._parts is None:
            raise EngineStoppedError(
                "the engine is not started: use `async with` or call `await start()`"
            )
        return self._parts

    def _check_accepting(self) -> None:
        self._started()
        if self._is_draining or self._is_closed:
            raise EngineStoppedError(DRAINING)

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

    def _end(self, request_id: str | None = None) -> None:
        """End requests early: those with this id, or all. Their last outputs follow."""
        for link, stream in self.replicas.open_requests():
            if request_id in (None, stream.request_id):
                link.end(stream, is_read=True)

    async def _wait_idle(self) -> None:
        while any(self.replicas.open_requests()):  # noqa: ASYNC110 (only when the server ends)
            await asyncio.sleep(IDLE_POLL_SECONDS)
