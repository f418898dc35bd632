"""A decision as a real pluggy call: one provider, wrappers around it, none that can break it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from traceback import walk_tb
from types import FrameType
from typing import Any, Final, Protocol

import pluggy

from ..contract.plugin_info import HookStats, Source
from .hook_timing import SLOW_SECONDS

MAX_FAILURES = 3
FAILED: Final = object()
"""The answer of a call that failed; the caller decides by itself then."""


class Reports(Protocol):
    """Where failures and slow calls are told: the FailureLog, at once or later."""

    def record(
        self, source: Source, hook: str, error: BaseException | str, action: str
    ) -> None: ...
    def take_out(self, source: Source, hook: str, instead: str) -> None: ...
    def warn_slow(self, stats: HookStats, hook: str, source: Source, seconds: float) -> None: ...


class DecisionHook:
    """The hook of one slot.

    A provider that fails three times in a row is taken out; a wrapper that raises is taken out at
    once, since the decision is there without it.
    """

    def __init__(
        self,
        name: str,
        provider: Source,
        manager: pluggy.PluginManager,
        sources: Mapping[str, Source],
        failures: Reports,
        *,
        instead: str = "the built-in policy decides",
    ) -> None:
        self.name = name
        self._instead = instead
        self.stats = HookStats()
        self._provider = provider
        self._manager = manager
        self._sources = sources
        self._failures = failures
        self._call: Callable[..., Any] = getattr(manager.hook, name)
        self._dropped: list[object] = []
        self._streak = 0
        self._has_failed = False
        self._is_out = False

    def ask(self, **arguments: object) -> Any:
        """The answer, or FAILED when something raised or the provider was taken out."""
        if self._is_out:
            return FAILED
        if not self._has_failed:
            self._streak = 0
        self._has_failed = False
        started = perf_counter()
        try:
            return self._call(**arguments)
        except Exception as error:
            self._blame(error)
            return FAILED
        finally:
            self._count(perf_counter() - started)

    def reject(self, complaint: str) -> None:
        """The last answer was useless: it counts like an exception of the provider."""
        self._fail_provider(complaint)

    def _count(self, seconds: float) -> None:
        self.stats.calls += 1
        self.stats.seconds += seconds
        if seconds > SLOW_SECONDS:
            self._failures.warn_slow(self.stats, self.name, self._provider, seconds)

    def _blame(self, error: Exception) -> None:
        culprit = find_culprit(error, self._implementations())
        if culprit is not None and culprit.wrapper:
            self._drop_wrapper(culprit, error)
        else:
            self._fail_provider(error)

    def _drop_wrapper(self, wrapper: pluggy.HookImpl, error: Exception) -> None:
        self._dropped.append(wrapper.plugin)
        self._call = self._manager.subset_hook_caller(self.name, self._dropped)
        source = self._sources[wrapper.plugin_name]
        self._note(source, error, "dropped")
        self._failures.take_out(source, self.name, "the provider decides without this wrapper")

    def _fail_provider(self, error: Exception | str) -> None:
        self._has_failed = True
        self._streak += 1
        self._note(self._provider, error, "fallback")
        if self._streak >= MAX_FAILURES and not self._is_out:
            self._is_out = True
            self._failures.take_out(self._provider, self.name, self._instead)

    def _note(self, source: Source, error: Exception | str, action: str) -> None:
        self.stats.failures += 1
        self._failures.record(source, self.name, error, action)

    def _implementations(self) -> list[pluggy.HookImpl]:
        found = getattr(self._manager.hook, self.name).get_hookimpls()
        return [i for i in found if i.plugin not in self._dropped]


def find_culprit(
    error: BaseException, implementations: Sequence[pluggy.HookImpl]
) -> pluggy.HookImpl | None:
    """Whose function raised: the innermost one on the traceback.

    An exception on its way out passes through every wrapper, so the outer frames prove nothing.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        for implementation in implementations:
            if _runs(frame, implementation):
                return implementation
    return next((i for i in implementations if _broke_protocol(error, i)), None)


def _runs(frame: FrameType, implementation: pluggy.HookImpl) -> bool:
    function = implementation.function
    if getattr(function, "__code__", None) is not frame.f_code:
        return False
    owner = getattr(function, "__self__", None)  # two objects of one class share the code
    return owner is None or any(value is owner for value in frame.f_locals.values())


def _broke_protocol(error: BaseException, implementation: pluggy.HookImpl) -> bool:
    """A wrapper that yielded twice or never: pluggy raises on its behalf and names its place."""
    code = getattr(implementation.function, "__code__", None)
    place = f"{code.co_filename}:{code.co_firstlineno} " if code else ""
    return bool(implementation.wrapper and place) and place in str(error)
