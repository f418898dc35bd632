"""Reads the totals of one hook, over all plugins."""

from __future__ import annotations

from functools import reduce
from operator import add

from tokenmill.core.contract.plugin_info import HookStats
from tokenmill.core.host.plugin_host import PluginHost


def stats_of(host: PluginHost, hook: str) -> HookStats:
    return reduce(add, (stats for stats in host.hook_stats() if stats.hook == hook))
