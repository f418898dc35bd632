"""Counts and logs failures and slow calls of plugins, and sends failures to the observers."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace

from ...contract.events import PluginFailed
from ...contract.plugin_info import PluginInfo, Source
from ...errors import describe
from ...log import get_logger

LOG_SECONDS = 60.0
_log = get_logger("plugins")


class FailureLog:
    """Counts failures per plugin and hook. Logs the 1st, 10th, 100th, ... of each, and others if a
    minute has passed since the last line."""

    def __init__(self, emit: Callable[[PluginFailed], None]) -> None:
        """`emit` sends the event to the observers."""
        self.taken_out: dict[str, str] = {}
        """Plugins that lost a hook since the start, and why."""
        self._emit = emit
        self._counts: Counter[tuple[str, str]] = Counter()
        self._logged_at: dict[tuple[str, str], float] = {}

    def record(self, source: Source, hook: str, error: BaseException | str, action: str) -> None:
        """Record one failure. `action` says what the engine did; see PluginFailed."""
        self._counts[source.plugin, hook] += 1
        count = self._counts[source.plugin, hook]
        text = error if isinstance(error, str) else describe(error)
        now, last = time.monotonic(), self._logged_at.get((source.plugin, hook), -math.inf)
        if _is_power_of_ten(count) or now - last >= LOG_SECONDS:
            self._logged_at[source.plugin, hook] = now
            _log.warning(
                "plugin_failed",
                **asdict(source),
                hook=hook,
                error=text,
                action=action,
                count=count,
                exc_info=error if isinstance(error, BaseException) else None,
            )
        if hook != "on_plugin_failed":  # a failing observer of failures must not call itself again
            self._emit(
                PluginFailed(
                    plugin=source.plugin, hook=hook, error=text, action=action, count=count
                )
            )

    def take_out(self, source: Source, hook: str, instead: str) -> None:
        """Log as an error that this hook of a plugin is not called any more.

        `instead` says what the engine does from now on.
        """
        self.taken_out[source.plugin] = f"taken out of {hook!r} after repeated failures"
        _log.error(
            "plugin_taken_out",
            **asdict(source),
            hook=hook,
            failures=self._counts[source.plugin, hook],
            instead=instead,
        )

    def warn_slow(self, source: Source, hook: str, seconds: float, count: int) -> None:
        """Log a slow call; `count` is the number of slow calls of this plugin and hook so far."""
        if _is_power_of_ten(count):
            _log.warning(
                "hook_slow",
                **asdict(source),
                hook=hook,
                milliseconds=round(seconds * 1000, 1),
                count=count,
            )

    def with_failures(self, info: PluginInfo) -> PluginInfo:
        """`info` with the failures in this log added, over all hooks of the plugin."""
        failures = sum(n for (plugin, _), n in self._counts.items() if plugin == info.name)
        info = replace(info, failures=info.failures + failures)
        taken_out = self.taken_out.get(info.name)
        return replace(info, state="failed", error=taken_out) if taken_out else info


def _is_power_of_ten(count: int) -> bool:
    while count >= 10 and count % 10 == 0:
        count //= 10
    return count == 1
