"""Counts the calls, seconds and failures of the parsers of answers, in the server's process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...core.contract.parsing.answer_parsers import Parsing
from ...core.contract.plugin_info import HookStats, PluginInfo, Source, add_stats
from ...core.contract.registry import Provider
from ...core.host.calling.failure_log import FailureLog
from ...core.host.calling.guard import Guard, Rule

PARSES = Rule(action="contained", max_failures=math.inf)
"""The rest of the answer is content. A parser is never taken out: the next answer may be valid."""


class ParserGuards:
    """The guards of one server's parsers."""

    def __init__(self) -> None:
        self._log = FailureLog(lambda event: None)  # observers are in the engines' processes
        self._guards: dict[int, Guard] = {}

    def watch(self, parser: Any, provider: Provider | None) -> Any:
        """Count the calls of a parser from now on, unless it is None; returns the parser."""
        if provider is not None:
            self._add(parser, provider.source, f"{provider.kind}.parse")
        return parser

    def of(self, parser: Any) -> Guard:
        """The guard of a parser. Its call begins to parse an answer."""
        known = self._guards.get(id(parser))
        return known or self._add(parser, Source(plugin=type(parser).__name__), "parse")

    @property
    def all(self) -> tuple[Guard, ...]:
        """The guards of all parsers."""
        return tuple(self._guards.values())

    def hook_stats(self) -> tuple[HookStats, ...]:
        """Calls, seconds and failures of the parsers, per plugin and hook."""
        return add_stats(guard.stats for guard in self.all)

    def add(self, function: Callable[..., Any], source: Source, hook: str, rule: Rule) -> Guard:
        """The guard of another function that runs in the server's process."""
        guard = Guard(function, source, hook, rule, self._log)
        self._guards[id(guard)] = guard
        return guard

    def _add(self, parser: Any, source: Source, hook: str) -> Guard:
        guard = Guard(partial(_begin, parser.parse), source, hook, PARSES, self._log)
        self._guards[id(parser)] = guard
        return guard

    def with_failures(self, infos: Sequence[PluginInfo]) -> tuple[PluginInfo, ...]:
        """The plugins, with the failures of their parsers added."""
        return tuple(map(self._log.with_failures, infos))


def _begin(parse: Callable[..., Parsing], *arguments: object) -> Parsing:
    """Parse, but not before the first `next`, so that all code of the parser runs in there."""
    yield from parse(*arguments)
