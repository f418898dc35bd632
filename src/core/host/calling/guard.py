"""A guard calls one hook of one plugin: it times and counts calls, and contains failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from time import perf_counter
from types import MethodType
from typing import Any, Final, Literal, Protocol

import pluggy

from ...contract.plugin_info import HookStats, Source
from ...contract.start_calls import named_frame
from ...errors import CONTAINED
from .failure_log import FailureLog

FAILED: Final = object()
"""The answer of a call that raised."""
SLOW_SECONDS = 0.05
"""Longer calls are logged. A small model computes about ten steps in this time."""

Later = Callable[[Callable[[], None]], None]
"""Takes a report, to be made later on the engine thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The engine's reaction to a hook that fails. Actions have the names of PluginFailed."""

    action: str
    last_action: str = ""
    """Action for the failure after which the hook is not called any more, if it is different."""
    max_failures: float = 3
    """Number of failures within `window` after which the plugin is taken out of the hook."""
    window: float = 10
    """Number of the last calls whose failures count. A plugin that fails in every second call must
    be taken out, too, so a successful call does not reset the count."""
    instead: str = ""
    """The engine's behaviour from then on, for the log."""


DECIDES = Rule(action="fallback", instead="the built-in policy decides")
WRAPS = Rule(action="dropped", max_failures=1, instead="the provider decides without this wrapper")
OBSERVES = Rule(
    action="contained",
    last_action="dropped",
    window=math.inf,
    instead="it is not called any more",
)
ADMITS = Rule(action="request failed", max_failures=math.inf)


class Mark(Protocol):
    """Its item 0 is set to 1 when a call begins, and to 0 when it ends."""

    def __setitem__(self, index: Literal[0], runs: int, /) -> None: ...


class Guard:
    """Calls one hook of one plugin. `is_out` becomes true after `max_failures` of its rule."""

    def __init__(
        self,
        function: Callable[..., Any],
        source: Source,
        hook: str,
        rule: Rule,
        log: FailureLog,
        *,
        later: Later | None = None,
    ) -> None:
        """`later` takes the reports of a hook that does not run on the engine thread."""
        self.function = function
        self.source = source
        self.hook = hook
        self.rule = rule
        self.is_out = False
        self.seconds = 0.0
        """Seconds of all calls so far."""
        self.since = 0.0
        """Time of `perf_counter` at which the running call began; 0: no call is running."""
        self.thread = 0
        """Id of the thread of the last call."""
        self.warns_slow = True
        self.mark: Mark = memoryview(bytearray(1))
        """A byte that is 1 while a call runs: see `show_calls`."""
        self._log = log
        self._later = later
        self._calls = self._failures = self._slow = 0
        self._failed_calls: list[int] = []  # numbers of the failed calls within the rule's window

    @property
    def is_on_engine_thread(self) -> bool:
        """Whether its calls delay the next step."""
        return self._later is None

    @property
    def stats(self) -> HookStats:
        return HookStats(
            plugin=self.source.plugin,
            hook=self.hook,
            calls=self._calls,
            seconds=self.seconds,
            failures=self._failures,
            slow=self._slow,
        )

    def __call__(self, *arguments: object) -> Any:
        """Call the hook; returns its answer, or FAILED if it raised."""
        try:
            return self.call(*arguments)
        except CONTAINED as error:
            self.fail(error)
            return FAILED

    def call(self, *arguments: object) -> Any:
        """Call the hook; returns its answer. Exceptions pass through, and the caller must report
        them to `fail`."""
        self._calls += 1
        return self.resume(self.function, *arguments)

    def resume(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Run another part of the same call. It is timed, but not counted as a call."""
        self.thread = get_ident()
        self.since = started = perf_counter()
        self.mark[0] = 1
        after = 0
        try:
            return function(*arguments)
        except KeyboardInterrupt:  # it ends the process, whose parent names the plugin
            after = 1
            raise
        finally:
            self.since = 0.0  # first: a call handles signals, whose handler may interrupt this hook
            seconds = perf_counter() - started
            self.mark[0] = after
            self.seconds += seconds
            if seconds > SLOW_SECONDS and self.warns_slow:
                self._slow += 1
                self._report(
                    partial(self._log.warn_slow, self.source, self.hook, seconds, self._slow)
                )

    def name_frames(self) -> None:
        """Let the frames of its calls have the names of plugin and hook in stacks."""
        named = named_frame(Guard.resume, f"{self.hook!r} of {self.source}")
        self.resume = MethodType(named, self)  # type: ignore[method-assign]

    def fail(self, error: BaseException | str) -> None:
        """Count a failure of the last call: an exception, or a complaint about its answer."""
        oldest = self._calls - self.rule.window
        self._failed_calls = [*(n for n in self._failed_calls if n > oldest), self._calls]
        self._failures += 1
        is_last = not self.is_out and len(self._failed_calls) >= self.rule.max_failures
        self.is_out |= is_last
        action = (is_last and self.rule.last_action) or self.rule.action
        self._report(partial(self._log.record, self.source, self.hook, error, action))
        if is_last:
            self._report(partial(self._log.take_out, self.source, self.hook, self.rule.instead))

    def _report(self, report: Callable[[], None]) -> None:
        if self._later is None:
            report()
        else:
            self._later(report)


def make_guards(
    hook: pluggy.HookCaller,
    rule: Rule,
    sources: Mapping[str, Source],
    log: FailureLog,
    *,
    wrappers: bool = False,
    later: Later | None = None,
) -> tuple[Guard, ...]:
    """Guards of the implementations of a hook, or of its wrappers, in pluggy's calling order."""
    assert hook.spec is not None
    return tuple(
        Guard(
            _positional(implementation, hook.spec.argnames),
            sources[implementation.plugin_name],
            hook.name,
            rule,
            log,
            later=later,
        )
        for implementation in reversed(hook.get_hookimpls())
        if implementation.wrapper == wrappers
    )


def _positional(implementation: pluggy.HookImpl, offered: Sequence[str]) -> Callable[..., Any]:
    """A function that takes all arguments of the hook and passes on those that it implements."""
    function: Callable[..., Any] = implementation.function
    if tuple(implementation.argnames) == tuple(offered):
        return function
    places = [list(offered).index(name) for name in implementation.argnames]
    return lambda *arguments: function(*(arguments[place] for place in places))
