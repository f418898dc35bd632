"""The engine in this process: its parts, its loop, and their start and end."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from ..config import EngineConfig
from ..contract.activity import Activity, LiveRequest
from ..contract.client import EngineClient, Load
from ..contract.events import Started, Stopping
from ..contract.explanation import Explanation
from ..contract.plugin_info import HookStats, PluginInfo
from ..contract.trace import Trace, join_pieces
from ..engine.request import Request
from ..errors import CONTAINED, ConfigError, InvalidRequestError
from ..host.calling.running_calls import show_calls
from ..host.calling.watchdog import Watchdog
from ..host.plugin_host import PluginHost
from ..interfaces import Executor, GrammarChecker, Progress, Tokenizer, no_progress
from ..log import get_logger
from ..processes.watching.board import private_board
from .checking import CheckedRequest
from .engine_shell import CLOSING_SECONDS, EngineShell, Facts, MakeReader
from .home import Life
from .new_core import fit_max_model_len, make_core
from .new_requests import describe_arrival, make_requests
from .output_stream import Completion, OutputStream
from .steps.loop import StepLoop, stopped_by

log = get_logger("engine")

DEVICE_THREAD = "tokenmill-device"
"""Beginning of the name of each engine's device thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """The parts of an engine, which are built on the device thread."""

    executor: Executor
    tokenizer: Tokenizer
    plugins: PluginHost
    grammars: GrammarChecker | None = None
    """None: the engine takes no request with a grammar."""


Builder = Callable[[EngineConfig, Progress], EngineParts]


def local_engine(
    config: EngineConfig,
    build: Builder,
    progress: Progress = no_progress,
    *,
    warns: bool = True,
    make_reader: MakeReader | None = None,
) -> EngineShell:
    """An engine in this process, not started yet. `warns` and `make_reader`: see EngineShell."""
    running = LocalEngine(config, build, progress)
    return EngineShell(config, running, warns=warns, make_reader=make_reader)


def refuse_replicas(config: EngineConfig) -> None:
    """Raise ConfigError if the configuration has replicas: an engine in this process has none."""
    if config.data_parallel_size > 1:
        raise ConfigError(
            f"--data-parallel-size {config.data_parallel_size} needs engine processes: use LLM, or "
            "`tokenmill serve` without --no-engine-process"
        )


class LocalEngine:
    """The RunningEngine of this process, which documents the methods.

    On a CPU, building an engine may start the compiler of the native kernels, and their self-test
    once per library and CPU. TOKENMILL_CPU_SELF_TEST=0 switches the test off.
    """

    def __init__(self, config: EngineConfig, build: Builder, progress: Progress) -> None:
        self.life = Life()
        self.facts: Facts | None = None
        self._config = config
        self._build = build
        self._progress = progress
        self._random = random.Random(config.seed)
        self._device = ThreadPoolExecutor(1, thread_name_prefix=DEVICE_THREAD)
        self.board = private_board(config.max_num_seqs)
        """The engine writes here what it does. For a parent process, set another before `start`."""
        self._lifespans = AsyncExitStack()
        self._watchdog: Watchdog | None = None
        self._parts: EngineParts | None = None
        self._loop: StepLoop | None = None
        self._task: asyncio.Task[None] | None = None

    # Start and end

    async def start(self, client: EngineClient) -> None:
        """Build the parts on the device thread, and start the loop."""
        began = time.monotonic()
        self._parts = await self._on_device(self._build, self._config, self._progress)
        executor, plugins = self._parts.executor, self._parts.plugins
        self.max_model_len = fit_max_model_len(self._config, executor.info)
        self.facts = Facts(info=executor.info, tokenizer=self._parts.tokenizer)
        core = make_core(self._config, executor.info, plugins, self.max_model_len)
        load_seconds = time.monotonic() - began
        self._loop = StepLoop(
            core, executor, self._device, self.board, load_seconds, plugins.foreign_computing
        )
        show_calls(plugins.guards, self.board)
        self._watchdog = Watchdog(plugins.guards, self._config.hook_watchdog_seconds)
        self._watchdog.start()
        limit = self._config.plugin_start_timeout or None
        for lifespan in plugins.lifespans(client, limit):
            await self._lifespans.enter_async_context(lifespan)
        self._task = asyncio.create_task(self._loop.run(), name="tokenmill-engine")
        plugins.emit(
            Started(
                info=executor.info,
                model_name=client.model_name,
                max_model_len=self.max_model_len,
            )
        )

    def prepare_grammars(self) -> None:
        """Get ready for the first grammar in the background, so that its request need not wait for
        a process to start. For servers: the process would be useless to most scripts."""
        if (checker := self._running()[0].grammars) is not None:
            checker.prepare()

    async def wait_idle(self) -> None:
        await self._running()[1].wait_idle()

    async def close(self) -> None:
        hangs = not await self._stop_loop()
        await self._lifespans.aclose()
        if self._parts is not None:
            self._parts.plugins.emit(Stopping())
            if self._parts.grammars is not None:
                self._parts.grammars.close()
            with suppress(RuntimeError):  # at the end of a program its worker threads have ended
                closing = self._on_device(_close_executor, self._parts)
                await (asyncio.wait([closing], timeout=0) if hangs else closing)
        self._device.shutdown(wait=False)
        if self._watchdog is not None:
            self._watchdog.stop()

    async def _stop_loop(self) -> bool:
        """End all requests and the loop; False if its step does not end in time."""
        if self._loop is None or self._task is None:
            return True
        self._loop.abort_all()
        self._loop.stop()
        _, running = await asyncio.wait([self._task], timeout=CLOSING_SECONDS)
        if running:
            log.error("step_hangs", seconds=CLOSING_SECONDS, reason="closing without its end")
            self._task.cancel()
        return not running

    # Requests

    @property
    def death(self) -> str | None:
        """The reason why the engine can no longer compute; None while it can."""
        return self._running()[1].death

    def check_accepting(self) -> None:
        if (death := self.death) is not None:
            raise stopped_by(death)
        self.life.check_accepting()

    async def queue(
        self,
        checked: CheckedRequest,
        prompt: str | None,
        arrival_time: float,
        *,
        number: int = 0,
    ) -> OutputStream:
        """`number`: see OutputStream."""
        parts, loop = self._running()
        info, params, options = parts.executor.info, checked.params, checked.options
        checked.refuse_stale(info, self.max_model_len)
        processors = parts.plugins.processors_of(params)
        began = time.monotonic()
        ignored_keywords = await self._check_grammar(checked)
        compiled = time.monotonic()
        if parts.plugins.prepares:
            await parts.plugins.before_admit(describe_arrival(checked))
        # Nothing may wait from here on: plugins hold what they found out for this request.
        self.check_accepting()  # the engine may have been closed meanwhile
        requests = make_requests(
            checked,
            request_id=loop.free_id(
                options.request_id or f"request-{uuid.uuid4().hex}", options.prompt_index, params.n
            ),
            seed=self._random.getrandbits(63) if params.seed is None else params.seed & (2**63 - 1),
            arrival_time=arrival_time,
            info=info,
            config=self._config,
            processors=processors,
            grammar_seconds=0.0 if params.grammar is None else compiled - began,
        )
        stream = self._make_stream(requests, ignored_keywords)
        stream.prompt, stream.number = prompt, number
        loop.add(requests, stream)
        return stream

    def abort(self, request_id: str | None) -> None:
        loop = self._running()[1]
        if request_id is None:
            loop.abort_all()
        else:
            loop.abort(request_id)

    # Reports

    async def refresh(self) -> None:
        pass  # nothing is ever out of date

    def load(self) -> Load:
        loop = self._running()[1]
        return Load(
            num_running=loop.core.num_running,
            num_waiting=loop.core.num_waiting,
            kv_cache_usage=loop.core.kv_cache_usage,
            stalled_for=loop.stalled_for,
            expected_step_seconds=loop.expected_step_seconds,
            is_alive=loop.death is None and not self.life.is_closed,
            is_draining=self.life.is_draining,
        )

    async def reset_prefix_cache(self) -> bool:
        return self.reset_prefix_cache_now()

    def reset_prefix_cache_now(self) -> bool:
        """The answer of `reset_prefix_cache`."""
        return self._running()[1].core.reset_prefix_cache()

    def live_requests(self) -> tuple[LiveRequest, ...]:
        return self._running()[1].core.describe_live(time.monotonic())

    async def explain(self, request_id: str | None, count: int) -> tuple[Explanation, ...]:
        return self.explain_now(request_id, count)

    def explain_now(self, request_id: str | None, count: int) -> tuple[Explanation, ...]:
        """The explanations that `explain` returns."""
        log, now = self._running()[1].core.log, time.monotonic()
        if log is None:
            return ()
        return log.slowest(count, now) if request_id is None else log.explain(request_id, now)

    async def activity(self, after_step: int) -> tuple[Activity, ...]:
        return (self.activity_now(after_step),)

    def activity_now(self, after_step: int) -> Activity:
        """The answer of `activity`."""
        return self._running()[1].core.activity(after_step, time.monotonic())

    async def measure_regions(self, until: float) -> None:
        self.measure_regions_now(until)

    def measure_regions_now(self, until: float) -> None:
        """Do what `measure_regions` does."""
        self._running()[1].core.measure_regions(until)

    async def trace(self, since: float) -> tuple[Trace, ...]:
        return (join_pieces([piece async for piece in self.trace_pieces(since)]),)

    async def trace_pieces(self, since: float) -> AsyncIterator[Trace]:
        """The answer of `trace` in pieces, between which the engine goes on with its steps."""
        log, now = self._running()[1].core.log, time.monotonic()
        if log is None:
            yield Trace(since=since, until=now, steps=(), requests=())
            return
        for piece in log.trace(since, now):
            yield piece
            await asyncio.sleep(0)

    def plugins(self) -> tuple[PluginInfo, ...]:
        return self._running()[0].plugins.plugins()

    def hook_stats(self) -> tuple[HookStats, ...]:
        return self._running()[0].plugins.hook_stats()

    def render_metrics(self) -> bytes:
        return self._running()[0].plugins.render_metrics()

    # Inside

    def _on_device(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._device, function, *args)

    def _running(self) -> tuple[EngineParts, StepLoop]:
        assert self._parts is not None and self._loop is not None, "started"
        return self._parts, self._loop

    async def _check_grammar(self, checked: CheckedRequest) -> tuple[str, ...]:
        if checked.params.grammar is None:
            return ()
        checker = self._running()[0].grammars
        if checker is None:
            raise InvalidRequestError("this engine has no grammar backend", param="grammar")
        return await checker.check(checked.params.grammar)

    def _make_stream(
        self, requests: list[Request], ignored_keywords: tuple[str, ...]
    ) -> OutputStream:
        params = requests[0].sampling_params
        parts, loop = self._running()
        make_detokenizer = parts.tokenizer.detokenizer
        return OutputStream(
            requests=requests,
            completions=[
                Completion(
                    i, params, make_detokenizer(skip_special_tokens=params.skip_special_tokens)
                )
                for i in range(params.n)
            ],
            abort=loop.abort_stream,
            ignored_keywords=ignored_keywords,
            home=self.life.home,
        )


def _close_executor(parts: EngineParts) -> None:
    try:
        parts.executor.close()
    except CONTAINED as error:
        plugins = list(parts.plugins.foreign_computing)
        log.error("executor_failed", method="close", plugins=plugins, exc_info=error)
