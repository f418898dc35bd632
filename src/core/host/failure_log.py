"""Nothing that a plugin does wrong is silent: it is counted, logged and told to the observers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ..contract.events import PluginFailed
from ..contract.plugin_info import HookStats, Source
from ..log import get_logger
from .hook_timing import is_power_of_ten, warn_slow

_log = get_logger("plugins")


class FailureLog:
    """Counts failures per plugin and hook. `emit` is set once observers exist."""

    def __init__(self) -> None:
        self.emit: Callable[[PluginFailed], None] = lambda event: None
        self.taken_out: dict[str, str] = {}
        """Plugins that lost a hook since the start, and what the last error was."""
        self._counts: Counter[tuple[str, str]] = Counter()

    def record(self, source: Source, hook: str, error: BaseException | str, action: str) -> None:
        """Note one failure, and what was done instead."""
        self._counts[source.plugin, hook] += 1
        count = self._counts[source.plugin, hook]
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        if is_power_of_ten(count):
            _log.warning(
                "plugin_failed",
                plugin=source.plugin,
                distribution=source.distribution,
                version=source.version,
                hook=hook,
                error=text,
                action=action,
                count=count,
                exc_info=error if isinstance(error, BaseException) else None,
            )
        if hook != "on_plugin_failed":  # or an observer of failures that fails would call itself
            self.emit(
                PluginFailed(
                    plugin=source.plugin, hook=hook, error=text, action=action, count=count
                )
            )

    def take_out(self, source: Source, hook: str, instead: str) -> None:
        """Say loudly that a plugin is not called any more in this hook."""
        self.taken_out[source.plugin] = f"taken out of {hook!r} after repeated failures"
        _log.error(
            "plugin_taken_out",
            plugin=source.plugin,
            distribution=source.distribution,
            version=source.version,
            hook=hook,
            failures=self._counts[source.plugin, hook],
            instead=instead,
        )

    def warn_slow(self, stats: HookStats, hook: str, source: Source, seconds: float) -> None:
        """Count a slow call, and say so at 1, 10, 100, ..."""
        warn_slow(stats, hook, source, seconds)

    def of_plugin(self, plugin: str) -> int:
        """Failures of a plugin, in all hooks."""
        return sum(n for (p, _), n in self._counts.items() if p == plugin)
