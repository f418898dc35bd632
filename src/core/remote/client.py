"""An engine in a supervised process of its own, with the interface of one in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Self

from ..config import EngineConfig
from ..contract.client import EngineClient, LiveRequest, Load
from ..contract.plugin_info import HookStats, PluginInfo
from ..errors import EngineStoppedError
from ..interfaces import ModelInfo, Progress, Tokenizer, no_progress
from ..outputs import RequestOutput
from ..request_options import RequestOptions
from ..sampling_params import SamplingParams
from ..shell.admission import checked_prompt, default_sampling_params, room_for_output
from ..shell.engine_shell import CLOSING_SECONDS, DRAINING
from .link import IDLE, LOST, EngineLink
from .messages import Ready
from .stream import RemoteStream
from .supervisor import EngineSupervisor

IDLE_POLL_SECONDS = 0.02
LoadTokenizer = Callable[[EngineConfig], Tokenizer]


class EngineProcess(EngineClient):
    """Runs an engine in a child process, and starts another one when it crashes or hangs.

    EngineClient documents the methods. The tokenizer and the streams live in this process; model,
    plugins and the engine's loop live in the other one. When the engine is lost, every open request
    ends with EngineStoppedError at once.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        target: str,
        load_tokenizer: LoadTokenizer,
        progress: Progress = no_progress,
        stall_timeout: float = 10.0,
        max_restarts: int = 5,
    ) -> None:
        """`target`: function of the child process, see `processes.child.spawn`. `stall_timeout`:
        see Load.is_stalled. `max_restarts`: number of restarts within ten minutes after which it
        gives up."""
        self.supervisor = EngineSupervisor(
            config, target=target, stall_timeout=stall_timeout, max_restarts=max_restarts
        )
        self._config = config
        self._load_tokenizer = load_tokenizer
        self._progress = progress
        self._parts: tuple[Ready, Tokenizer] | None = None
        self._is_draining = False
        self._is_closed = False

    # Start and end

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the engine's process, and load the tokenizer here meanwhile.

        Raises ConfigError when the configuration, the model or a plugin cannot work.
        """
        starting = asyncio.create_task(self.supervisor.start(self._progress))
        try:
            if self._config.allow_download:
                await starting  # the engine downloads the tokenizer's files, too
            loading = asyncio.to_thread(self._load_tokenizer, self._config)
            ready, tokenizer = await asyncio.gather(starting, loading)
        except BaseException:
            await self.close()
            raise
        self._parts = ready, tokenizer

    async def drain(self, timeout: float | None = None) -> None:
        self._is_draining = True
        self.supervisor.restarts_engines = False
        try:
            await asyncio.wait_for(self._wait_idle(), timeout)
        except TimeoutError:
            self._end(self._open_requests())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wait_idle(), CLOSING_SECONDS)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._end(self._open_requests())
            await self.supervisor.close(CLOSING_SECONDS)

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
        self._accepting_link()
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
        self.supervisor.suspects.check(ids, params)
        link = self._accepting_link()
        stream = RemoteStream(
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=ids,
            params=params,
            end=lambda stream: link.end(stream, is_read=False),
        )
        await link.submit(stream, options)
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
        self._end(s for s in self._open_requests() if s.request_id == request_id)

    async def refresh(self) -> None:
        await self.supervisor.refresh()

    def load(self) -> Load:
        link = self._live_link()
        if link is not None:
            return replace(self.supervisor.load_of(link), is_draining=self._is_draining)
        goes_on = self.supervisor.failure is None and not self._is_draining
        return replace(
            IDLE,
            is_alive=False,
            is_draining=self._is_draining,
            is_restarting=goes_on and not self._is_closed,
        )

    def live_requests(self) -> tuple[LiveRequest, ...]:
        return () if self._live_link() is None else self.supervisor.report.requests

    def plugins(self) -> tuple[PluginInfo, ...]:
        return self.supervisor.report.plugins

    def hook_stats(self) -> tuple[HookStats, ...]:
        return self.supervisor.hook_stats()

    def render_metrics(self) -> bytes:
        return self.supervisor.render_metrics()

    # Inside

    def _started(self) -> tuple[Ready, Tokenizer]:
        if self._parts is None:
            raise EngineStoppedError(
                "the engine is not started: use `async with` or call `await start()`"
            )
        return self._parts

    def _live_link(self) -> EngineLink | None:
        """The connection to a ready engine, or None."""
        link = self.supervisor.link
        return link if link is not None and link.is_ready else None

    def _accepting_link(self) -> EngineLink:
        self._started()
        if self._is_draining or self._is_closed:
            raise EngineStoppedError(DRAINING)
        link = self._live_link()
        if link is None:
            raise EngineStoppedError(self.supervisor.failure or LOST)
        return link

    def _open_requests(self) -> list[RemoteStream]:
        link = self._live_link()
        return [] if link is None else list(link.open_requests.values())

    def _end(self, streams: Iterable[RemoteStream]) -> None:
        """End requests early. Their last outputs follow."""
        link = self._live_link()
        for stream in streams:
            if link is not None:
                link.end(stream, is_read=True)

    async def _wait_idle(self) -> None:
        while self._open_requests():  # noqa: ASYNC110 (only when the server ends)
            await asyncio.sleep(IDLE_POLL_SECONDS)
