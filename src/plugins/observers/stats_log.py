"""Logs a line with throughput, queue lengths and cache usage every ten seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from ...plugin import PluginContext, Preempted, Registry, StepDone, get_logger, hookimpl, kinds

TOKENMILL_API = (1, 1)
_log = get_logger("stats")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsLogOptions:
    """Options of [observer.stats-log]."""

    interval: Annotated[float, Meta(gt=0)] = field(
        default=10.0, metadata={"help": "seconds between two log lines"}
    )


@dataclass(slots=True)
class Interval:
    """Counts since the last log line."""

    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    mm_cache_queries: int = 0
    mm_cache_hits: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class StatsLog:
    """Logs one info event per interval in which a step was committed."""

    def __init__(self, options: StatsLogOptions) -> None:
        self._seconds = options.interval
        self._interval = Interval()
        self._last: StepDone | None = None
        self._total_preemptions = 0

    @hookimpl
    def on_step(self, event: StepDone) -> None:
        self._interval.num_prompt_tokens += event.num_prompt_tokens
        self._interval.num_generation_tokens += event.num_generation_tokens
        self._interval.prefix_cache_queries += event.prefix_cache_queries
        self._interval.prefix_cache_hits += event.prefix_cache_hits
        self._interval.mm_cache_queries += event.mm_cache_queries
        self._interval.mm_cache_hits += event.mm_cache_hits
        self._interval.num_drafts += event.num_drafts
        self._interval.num_draft_tokens += event.num_draft_tokens
        self._interval.num_accepted_tokens += event.num_accepted_tokens
        self._last = event

    @hookimpl
    def on_preempted(self, event: Preempted) -> None:
        self._interval.num_preemptions += 1
        self._total_preemptions = event.total_cumulative_preemption_cnt

    @hookimpl
    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._repeat(), name="tokenmill-stats-log")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _repeat(self) -> None:
        while True:
            started = time.monotonic()
            await asyncio.sleep(self._seconds)
            self.write(time.monotonic() - started)

    def write(self, seconds: float) -> None:
        """Log the counts of the last `seconds`, if a step was committed, and reset them."""
        interval, last = self._interval, self._last
        self._interval, self._last = Interval(), None
        if last is None:
            return
        fields: dict[str, object] = {
            "avg_prompt_throughput": f"{interval.num_prompt_tokens / seconds:.1f} tokens/s",
            "avg_generation_throughput": f"{interval.num_generation_tokens / seconds:.1f} tokens/s",
            "running": last.num_running,
            "waiting": last.num_waiting,
            "kv_cache_usage": f"{last.kv_cache_usage:.1%}",
            "total_cumulative_preemption_cnt": self._total_preemptions,
        }
        if interval.num_preemptions:
            fields["preemptions"] = interval.num_preemptions
        if interval.prefix_cache_queries:
            rate = interval.prefix_cache_hits / interval.prefix_cache_queries
            fields["prefix_cache_hit_rate"] = f"{rate:.1%}"
        if interval.mm_cache_queries:
            rate = interval.mm_cache_hits / interval.mm_cache_queries
            fields["mm_cache_hit_rate"] = f"{rate:.1%}"
        if interval.num_drafts:  # as in vLLM, the mean includes the model's own token
            mean = 1 + interval.num_accepted_tokens / interval.num_drafts
            fields["mean_acceptance_length"] = f"{mean:.2f}"
            rate = interval.num_accepted_tokens / interval.num_draft_tokens
            fields["draft_acceptance_rate"] = f"{rate:.1%}"
            fields["accepted_throughput"] = f"{interval.num_accepted_tokens / seconds:.1f} tokens/s"
        _log.info("engine_stats", **fields)


def make_stats_log(context: PluginContext, options: StatsLogOptions) -> StatsLog | None:
    """Make the observer, unless --disable-log-stats is given."""
    return None if context.config.disable_log_stats else StatsLog(options)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.OBSERVER, "stats-log", make_stats_log, options=StatsLogOptions)
