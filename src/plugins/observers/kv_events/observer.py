"""The observer: hands the changes of the prefix cache to the publisher, and counts lost batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ....plugin import (
    ConfigError,
    EngineClient,
    PluginContext,
    PrefixCacheChanged,
    Started,
    get_logger,
    hookimpl,
)
from .publisher import Publisher
from .settings import KVEventsSettings

_log = get_logger("kv_events")


class KVEvents:
    """Publishes a batch for each step that changes the prefix cache. It never waits."""

    def __init__(self, settings: KVEventsSettings, context: PluginContext) -> None:
        self._settings = settings
        self._has_cache = context.config.enable_prefix_caching
        dropped = context.metrics.counter(
            "dropped_batches",
            "Batches of KV events that were lost, because the queue of the publisher was full "
            "(queue), or for at least one consumer that was too slow (consumer).",
            ["where"],
        )
        self._publisher = Publisher(
            settings,
            replica=context.replica.index,
            dropped_by_queue=dropped.labels("queue"),
            dropped_by_consumer=dropped.labels("consumer"),
        )

    @property
    def num_batches(self) -> int:
        """Number of batches so far, dropped ones included."""
        return self._publisher.num_batches

    @hookimpl
    @asynccontextmanager
    async def lifespan(self, engine: EngineClient) -> AsyncIterator[None]:
        try:
            self._publisher.open()
        except ConfigError:
            await asyncio.to_thread(self._publisher.close)
            raise
        if not self._has_cache:
            _log.warning("no_kv_events", reason="the prefix cache is off")
        _log.info(
            "kv_events",
            endpoint=self._settings.endpoint,
            replay_endpoint=self._settings.replay_endpoint,
        )
        try:
            yield
        finally:
            await asyncio.to_thread(self._publisher.close)

    @hookimpl
    def on_started(self, event: Started) -> None:
        self._publisher.begin(event.info.kv_windows)

    @hookimpl
    def on_prefix_cache_changed(self, event: PrefixCacheChanged) -> None:
        self._publisher.put(None if event.is_cleared else event.changes)
