"""Warnings of slow hooks."""

from __future__ import annotations

from ..contract.plugin_info import HookStats, Source
from ..log import get_logger

SLOW_SECONDS = 0.05
_log = get_logger("plugins")


def is_power_of_ten(count: int) -> bool:
    """1, 10, 100, ...: when something that repeats is said again."""
    while count >= 10 and count % 10 == 0:
        count //= 10
    return count == 1


def warn_slow(stats: HookStats, hook: str, source: Source, seconds: float) -> None:
    """Count a slow call, and say so at 1, 10, 100, ..."""
    stats.slow[source.plugin] += 1
    if is_power_of_ten(stats.slow[source.plugin]):
        _log.warning(
            "hook_slow",
            hook=hook,
            plugin=source.plugin,
            distribution=source.distribution,
            milliseconds=round(seconds * 1000, 1),
            count=stats.slow[source.plugin],
        )
