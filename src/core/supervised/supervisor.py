"""Keeps one engine process running: detects that it ended or hangs, and starts another one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from ..contract.client import Load
from ..contract.plugin_info import HookStats, PluginInfo, add_stats
from ..errors import EngineStoppedError, TokenmillError, UnavailableError
from ..interfaces import Progress, no_progress
from ..log import get_logger
from ..processes.watching.restarts import PERIOD, Restarts
from ..processes.watching.stalls import Stall
from .counters import SurvivingCounters
from .link import IDLE, EngineLink, EngineSetup
from .lost_steps import save_last_steps
from .messages import Ready, Report

WATCH_SECONDS = 0.1
"""Time between two checks of the engine."""
SILENCE_SECONDS = 1.0
"""An engine whose event loop is silent for as long does not listen. Several times its pauses
between two signs of life."""
FIRST_LOOK = 0.3
"""Seconds of silence before which nobody asks why: a little more than between two signs of life."""
REPORT_SECONDS = 5.0
"""Time between two reports. A lost engine takes its counts since the last one with it."""
ANSWER_SECONDS = 0.5
"""Time limit of an answer. After a report's the last report is kept: the engine may hang."""
TRACE_SECONDS = 5.0
"""Time limit of a trace, which may have millions of bytes."""
START_SECONDS = 60.0
START_FACTOR = 10.0
"""An engine that starts again has 60 seconds and ten times as long as the first one. Afterwards it
counts as hanging."""
T = TypeVar("T")
log = get_logger("engine")


class EngineSupervisor:
    """Owns the current engine process, and the state that outlives it, such as counters."""

    def __init__(
        self,
        setup: EngineSetup,
        *,
        stall_timeout: float,
        max_restarts: int,
    ) -> None:
        self.link: EngineLink | None = None
        self._steps, self._loop = Stall(None), Stall(None)
        """The stalls of the engine's steps and of its event loop."""
        self.report = Report(0, IDLE)
        self.max_model_len = 0
        """The maximum of the engine that was ready last."""
        self._setup = setup
        self.num_restarts = 0
        self.num_lost_requests = 0
        """Accepted requests that ended with an error because their engine was lost or stopped."""
        self.failure: str | None = None
        """Why no other engine is started; None while there is an engine, or one will be started."""
        self.given_up = asyncio.Event()
        """Set when `failure` is set."""
        self.restarts_engines = True
        """False while the server ends: then a lost engine stays lost."""
        self._stall_timeout = stall_timeout
        self._restarts = Restarts(max_restarts)
        self._counters = SurvivingCounters()
        self.fatal_hooks: tuple[HookStats, ...] = ()
        """The hooks that ran when an engine was lost, with these failures."""
        self._ended_hooks: tuple[HookStats, ...] = ()
        self._task: asyncio.Task[None] | None = None
        self._start_seconds = 0.0

    async def start(self, progress: Progress) -> Ready:
        """Start the first engine.

        Raises what EngineLink.open raises, and EngineStoppedError instead of OSError.
        """
        began = time.monotonic()
        try:
            ready = await self._open(progress)
        except OSError as error:
            reason = error.strerror or error
            raise EngineStoppedError(f"the engine's process did not start: {reason}") from error
        self._start_seconds = time.monotonic() - began
        self._task = asyncio.create_task(self._supervise(), name="tokenmill-supervisor")
        return ready

    async def close(self, patience: float) -> None:
        """End the engine, within `patience` seconds if it does not hang."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self.link is not None:
            listens = self.link.is_ready and self._loop.seconds < SILENCE_SECONDS
            await self.link.close(patience if listens else 0.0)

    async def ask(
        self, question: Callable[[EngineLink], Awaitable[T]], limit: float = ANSWER_SECONDS
    ) -> T | None:
        """The engine's answer; None if it hangs, or there is no engine."""
        if (link := self.ready_link) is not None:
            with suppress(TimeoutError, TokenmillError):
                async with asyncio.timeout(limit):
                    return await question(link)
        return None

    async def refresh(self) -> None:
        """Get a new report, unless the engine hangs or there is none."""
        self.report = await self.ask(EngineLink.ask) or self.report

    def render_metrics(self) -> bytes:
        prefix = self._setup.config.metrics_prefix
        own = (
            f"# HELP {prefix}engine_restarts_total Engine processes started after a failure.\n"
            f"# TYPE {prefix}engine_restarts_total counter\n"
            f"{prefix}engine_restarts_total {self.num_restarts}.0\n"
            f"# HELP {prefix}engine_lost_requests_total Requests that ended with their engine.\n"
            f"# TYPE {prefix}engine_lost_requests_total counter\n"
            f"{prefix}engine_lost_requests_total {self.num_lost_requests}.0\n"
            f"# HELP {prefix}engine_up 1 while an engine process runs, 0 while it restarts.\n"
            f"# TYPE {prefix}engine_up gauge\n"
            f"{prefix}engine_up {float(self.ready_link is not None)}\n"
        )
        return self._counters.render(self.report.metrics) + own.encode()

    @property
    def ready_link(self) -> EngineLink | None:
        return self.link if self.link is not None and self.link.is_ready else None

    def hook_stats(self) -> tuple[HookStats, ...]:
        """Totals per plugin and hook, over all engines so far."""
        return add_stats(self._ended_hooks, self.report.hook_stats)

    def plugins(self) -> tuple[PluginInfo, ...]:
        """The plugins, with their failures in all engines so far."""
        failures: Counter[str] = Counter()
        for stats in self._ended_hooks:
            failures[stats.plugin] += stats.failures
        return tuple(
            replace(info, failures=info.failures + failures[info.name])
            for info in self.report.plugins
        )

    # Inside

    async def _open(self, progress: Progress) -> Ready:
        self.link = EngineLink(self._setup, progress)
        ready = await self.link.open()
        self.max_model_len = ready.max_model_len
        self._steps = Stall(self.link.pid)
        self._loop = Stall(self.link.pid, first_look=FIRST_LOOK)
        await self.refresh()
        return ready

    async def _supervise(self) -> None:
        try:
            await self._keep_running()
        except Exception as error:  # without it the server would wait for an engine for ever
            log.exception("supervisor_failed")
            self.failure = f"the engine's supervisor failed: {type(error).__name__}"
            self.given_up.set()

    async def _keep_running(self) -> None:
        while self.link is not None:
            reason = await self._watch_until_lost(self.link)
            file = {"no_last_steps": "the server ended first"}
            try:
                file = await save_last_steps(self._setup, self.link, reason)
            finally:  # a server that ends now says so, too
                self._note_loss(self.link, reason, file)
            if not (self.restarts_engines and await self._restart(reason)):
                return

    async def _watch_until_lost(self, link: EngineLink) -> str:
        tasks = [asyncio.create_task(work(link)) for work in (self._watch, self._ask)]
        try:
            return await asyncio.shield(link.lost)
        finally:
            for task in tasks:
                task.cancel()

    async def _watch(self, link: EngineLink) -> None:
        """Kill an engine that hangs."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            link.clear_suspects()
            seen, now = link.board.progress, time.monotonic()
            self._steps.check(now, seen.num_finished if seen.is_busy else None)
            self._loop.check(now, seen.num_beats)
            load = self.load_of(link)
            if load.is_stalled(self._stall_timeout):
                log.error("engine_hangs", seconds=round(load.stalled_for, 1))
                link.kill(f"made no step for {load.stalled_for:.1f} seconds")
                return

    def load_of(self, link: EngineLink) -> Load:
        """The last load of an engine, with its stall at the last check."""
        return replace(
            link.load,
            stalled_for=max(self._steps.seconds, self._loop.seconds),
            expected_step_seconds=link.board.expected_seconds,
        )

    async def _ask(self, link: EngineLink) -> None:
        while not link.is_lost:
            await asyncio.sleep(REPORT_SECONDS)
            link.note_oom_kills()
            await self.refresh()

    def _note_loss(self, link: EngineLink, reason: str, file: dict[str, str]) -> None:
        log.error("engine_lost", reason=reason, pid=link.pid, num_requests=len(link.at_end), **file)
        self._counters.end(self.report.metrics)
        guilty = [
            HookStats(plugin=call.plugin, hook=call.hook, failures=1) for call in link.running_calls
        ]
        self.fatal_hooks = add_stats(self.fatal_hooks, guilty)
        self._ended_hooks = add_stats(self.hook_stats(), guilty)
        # Their failures are in the statistics of ended engines now.
        plugins = tuple(replace(info, failures=0) for info in self.report.plugins)
        self.report = Report(0, IDLE, plugins=plugins)

    async def _restart(self, reason: str) -> bool:
        """Start another engine, and again if it fails to start. False: given up."""
        assert self.link is not None
        delay = self._restarts.next_delay(time.monotonic(), is_explained=self.link.is_explained)
        while delay is not None:
            await asyncio.sleep(delay)
            self.num_restarts += 1
            began = time.monotonic()
            try:
                limit = START_SECONDS + START_FACTOR * self._start_seconds
                # `wait_for` of Python 3.11 forgets a cancellation that comes with the result. Then
                # a server that ends just now would wait for ever.
                async with asyncio.timeout(limit):
                    await self._open(no_progress)
            except (TokenmillError, OSError) as error:  # OSError: no process, or too slow a start
                reason = str(error) or type(error).__name__
                log.error("engine_not_restarted", reason=reason)
                await self.link.close(0.0)
                counts = not isinstance(error, UnavailableError)
                delay = self._restarts.next_delay(time.monotonic(), counts=counts)
            else:
                seconds = round(time.monotonic() - began, 1)
                log.warning("engine_restarted", pid=self.link.pid, seconds=seconds)
                return True
        self.failure = (
            f"the engine failed again after {self._restarts.max_restarts} restarts in "
            f"{PERIOD / 60:.0f} minutes (--max-engine-restarts): {reason}"
        )
        log.error("engine_given_up", reason=self.failure)
        self.given_up.set()
        return False
