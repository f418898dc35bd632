"""Observers of one event: called in a fixed order, contained, cut off after three failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import pluggy

from ..contract.plugin_info import HookStats, Source
from .failure_log import FailureLog
from .hook_timing import SLOW_SECONDS, warn_slow

MAX_FAILURES = 3


@dataclass(slots=True, eq=False)
class Listener:
    """One implementation of the hook."""

    source: Source
    call: Callable[..., Any]
    failures: int = 0


class FanOut:
    """All implementations of one hook, frozen at start: pluggy's order without pluggy's cost."""

    def __init__(
        self, hook: pluggy.HookCaller, sources: Mapping[str, Source], failures: FailureLog
    ) -> None:
        self.name = hook.name
        self.stats = HookStats()
        self._failures = failures
        self._listeners = tuple(
            Listener(sources[i.plugin_name], _with_all_arguments(i))
            for i in reversed(hook.get_hookimpls())
        )

    def __bool__(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def __call__(self, *arguments: object) -> list[tuple[Listener, Any]]:
        """Tell everybody; returns who answered what, None left out."""
        answers = []
        before = started = perf_counter()
        for listener in self._listeners:
            try:
                answer = listener.call(*arguments)
            except Exception as error:
                self.fail(listener, error)
            else:
                if answer is not None:
                    answers.append((listener, answer))
            now = perf_counter()
            if now - before > SLOW_SECONDS:
                warn_slow(self.stats, self.name, listener.source, now - before)
            before = now
        self.stats.calls += 1
        self.stats.seconds += before - started
        return answers

    def fail(self, listener: Listener, error: Exception | str) -> None:
        """Count a failure of one observer; the third one cuts it off."""
        self.stats.failures += 1
        listener.failures += 1
        is_out = listener.failures >= MAX_FAILURES
        if is_out:
            self._listeners = tuple(other for other in self._listeners if other is not listener)
        self._failures.record(
            listener.source, self.name, error, "dropped" if is_out else "contained"
        )
        if is_out:
            self._failures.take_out(listener.source, self.name, "it is not called any more")


def _with_all_arguments(implementation: pluggy.HookImpl) -> Callable[..., Any]:
    """A hook implementation may take fewer arguments than the hook offers; these hooks have one."""
    function: Callable[..., Any] = implementation.function
    return function if implementation.argnames else lambda *arguments: function()
