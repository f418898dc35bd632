"""Engines in supervised processes of their own, with the interface of one in this process."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self

from ..config import EngineConfig
from ..contract.client import STALL_SECONDS, EngineClient, LiveRequest, Load
from ..contract.plugin_info import HookStats, PluginInfo, add_stats
from ..errors import EngineStoppedError, OverloadedError, RateLimitedError, TokenmillError
from ..host.calling.guard import Guard
from ..host.metrics.hook_samples import with_hook_stats
from ..host.routing import GuardedRouter, build_router
from ..interfaces import ModelInfo, Progress, Tokenizer, no_progress
from ..log import get_logger
from ..outputs import RequestOutput
from ..processes.place import WHOLE_MACHINE, Place
from ..request_options import RequestOptions
from ..sampling_params import SamplingParams
from ..shell.admission import checked_prompt, default_sampling_params, room_for_output
from ..shell.engine_shell import CLOSING_SECONDS, DRAINING
from ..shell.unused_settings import log_unused
from .crash_suspects import CrashSuspects, SuspectWaitsError
from .link import LOST, EngineLink, EngineSetup
from .messages import Ready
from .replicas import Replicas
from .routing import Routed, view_of
from .stream import RemoteStream
from .supervisor import EngineSupervisor

IDLE_POLL_SECONDS = 0.02
MAX_ENGINES = 2
"""Maximum number of engines that get the same request. A request that was open in two lost engines
may be the cause, and could end all engines one after the other."""
SUSPECTS_SECONDS = 30.0
"""Maximum time that a request of a lost engine waits for the suspects that are tried before it."""
SUSPECTS_POLL_SECONDS = 0.05
log = get_logger("engine")
LoadTokenizer = Callable[[EngineConfig], Tokenizer]


class RemoteEngine(EngineClient):
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
        self._parts: tuple[Ready, Tokenizer] | None = None
        self._router: GuardedRouter | None = None
        """None if there is only one engine."""
        self._resending: set[asyncio.Task[None]] = set()
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
            on_loss=partial(self._forget, index),
            on_lost_request=partial(self._rescue, index),
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
        if len(self.replicas) > 1:
            self._router = build_router(self._config)
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
            self._is_closed = True
            self._end()
            await self.replicas.close(CLOSING_SECONDS)

    # What callers see

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
        return self._started()[0].max_model_len

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
        self._check_accepting()
        options = (options or RequestOptions()).with_changes(**fields)
        params = sampling_params or self.default_sampling_params()
        ids = await checked_prompt(
            prompt,
            params,
            tokenizer=self.tokenizer,
            info=self.info,
            config=self._config,
            max_model_len=self.max_model_len,
        )
        room_for_output(len(ids), params, self.max_model_len)  # before a long prompt is sent
        stream = RemoteStream(
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=ids,
            params=params,
            options=self._with_free_id(options),
        )
        await self._send(stream)
        return stream

    async def generate(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        **fields: Any,
    ) -> AsyncIterator[RequestOutput]:
        stream = await self.submit(prompt, sampling_params, options, **fields)
        async with aclosing(stream):
            async for output in stream:
                yield output

    async def abort(self, request_id: str) -> None:
        self._end(request_id)

    async def refresh(self) -> None:
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
        return () if self._router is None else self._router.guards

    def plugins(self) -> tuple[PluginInfo, ...]:
        infos = self.replicas.plugins()
        return infos if self._router is None else self._router.with_failures(infos)

    def hook_stats(self) -> tuple[HookStats, ...]:
        stats = self.replicas.hook_stats()
        return stats if self._router is None else add_stats(stats, self._router.hook_stats())

    def render_metrics(self) -> bytes:
        metrics = self.replicas.render_metrics()
        if self._router is None:
            return metrics
        return with_hook_stats(metrics, self._router.hook_stats(), self)

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

    def _choose(
        self, stream: RemoteStream, full: Mapping[EngineLink, OverloadedError]
    ) -> EngineLink:
        """The engine that the router chooses for a request, among those that are not full."""
        self._check_accepting()
        serving = self.replicas.serving()
        if not serving:
            raise EngineStoppedError(self.replicas.failure or LOST)
        links = {index: link for index, link in serving if link not in full}
        if not links:
            raise next(iter(full.values()))
        if self._suspects:
            links = self._without_suspects(stream, links)
        if self._router is None:
            return links[0]
        request = Routed(stream, self.info, is_hashed=self._config.enable_prefix_caching)
        return links[self._router.route(request, [view_of(*one) for one in links.items()])]

    def _without_suspects(
        self, stream: RemoteStream, links: dict[int, EngineLink]
    ) -> dict[int, EngineLink]:
        """The engines that may get a request: each has one suspect at a time."""
        suspects = self._suspects
        suspects.check(stream.digest)
        if not suspects.is_suspect(stream.digest):
            return links
        free = {
            index: link
            for index, link in links.items()
            if not any(suspects.is_suspect(one.digest) for one in link.open_requests.values())
        }
        if not free:
            raise SuspectWaitsError(
                "the engine crashed while it computed this prompt, and another such request is "
                "tried again first; try again later"
            )
        return free

    async def _send(self, stream: RemoteStream) -> None:
        """Queue a request. If its engine is lost before it has accepted the request, or has no
        room in its queue, another one gets it."""
        full: dict[EngineLink, OverloadedError] = {}
        while True:
            link = self._choose(stream, full)
            try:
                return await link.submit(stream)
            except RateLimitedError:
                raise
            except OverloadedError as error:
                full[link] = error
            except EngineStoppedError:
                if link.is_ready or stream.num_engines == MAX_ENGINES:
                    raise
                stream.restart()

    def _forget(self, index: int) -> None:
        if self._router is not None:
            self._router.forget(index)

    def _rescue(self, index: int, stream: RemoteStream, error: TokenmillError) -> None:
        """Send a request of a lost engine to another one. It fails instead if its reader has a part
        of the answer, or if it may be the cause of the loss."""
        ends = self._is_draining or self._is_closed or not self.replicas.serving()
        if ends or stream.is_begun or stream.num_engines == MAX_ENGINES:
            self._fail(index, stream, error)
        elif not stream.is_closed:
            stream.restart()
            task = asyncio.create_task(self._send_again(index, stream))
            self._resending.add(task)
            task.add_done_callback(self._resending.discard)

    def _fail(self, index: int, stream: RemoteStream, error: TokenmillError) -> None:
        self.replicas.supervisors[index].num_lost_requests += 1
        stream.fail(error)

    async def _send_again(self, index: int, stream: RemoteStream) -> None:
        log.warning("request_sent_again", request_id=stream.request_id)
        stream.options = replace(stream.options, request_id=stream.request_id)
        try:
            await self._send_when_tried(stream)
        except TokenmillError as error:
            self._fail(index, stream, error)
        else:
            if stream.is_closed:  # its reader has left in the meantime
                stream.end(stream)

    async def _send_when_tried(self, stream: RemoteStream) -> None:
        """Queue a request of a lost engine, once the suspects before it are cleared."""
        end = time.monotonic() + SUSPECTS_SECONDS
        while True:
            try:
                return await self._send(stream)
            except SuspectWaitsError:
                if time.monotonic() >= end or stream.is_closed:
                    raise
            await asyncio.sleep(SUSPECTS_POLL_SECONDS)

    def _with_free_id(self, options: RequestOptions) -> RequestOptions:
        """Options with an id that no other open request has. Each engine makes ids unique only
        among its own requests."""
        wanted = options.request_id
        if len(self.replicas) == 1 or wanted is None or options.prompt_index:
            return options
        taken = {stream.options.request_id for _, stream in self.replicas.open_requests()}
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
