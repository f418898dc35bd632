"""The doorkeepers: all that are enabled are asked, the first refusal counts."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import pluggy

from ..contract.client import Load
from ..contract.plugin_info import HookStats, Source
from ..contract.policy import Refusal, RequestView
from ..errors import RequestFailedError
from .decision_hook import find_culprit
from .failure_log import FailureLog
from .hook_timing import SLOW_SECONDS, warn_slow


class AdmissionHook:
    """The hook `admit`. A doorkeeper that fails is never taken out: the door stays shut instead."""

    name = "admit"

    def __init__(
        self, hook: pluggy.HookCaller, sources: Mapping[str, Source], failures: FailureLog
    ) -> None:
        self.stats = HookStats()
        self._hook = hook
        self._sources = sources
        self._failures = failures
        self._implementations = hook.get_hookimpls()

    def ask(self, request: RequestView, load: Load) -> Refusal | None:
        """The first refusal, or None. Raises RequestFailedError if a doorkeeper failed."""
        if not self._implementations:
            return None
        started = perf_counter()
        try:
            answer = self._hook(request=request, load=load)
            if answer is not None and not isinstance(answer, Refusal):
                raise TypeError(f"'admit' answers None or a Refusal, got {answer!r}")
        except Exception as error:
            source = self._blame(error)
            raise RequestFailedError(
                f"the request could not be checked: {source} failed"
            ) from error
        finally:
            self._count(perf_counter() - started)
        return answer

    def _blame(self, error: Exception) -> Source:
        culprit = find_culprit(error, self._implementations)
        source = self._sources[culprit.plugin_name] if culprit else self._one_of_them()
        self.stats.failures += 1
        self._failures.record(source, self.name, error, "request failed")
        return source

    def _count(self, seconds: float) -> None:
        self.stats.calls += 1
        self.stats.seconds += seconds
        if seconds > SLOW_SECONDS:
            warn_slow(self.stats, self.name, self._one_of_them(), seconds)

    def _one_of_them(self) -> Source:
        """The doorkeeper; where there are several, it is not known which one it was."""
        first, *others = (self._sources[i.plugin_name] for i in self._implementations)
        names = " or ".join(source.plugin for source in (first, *others))
        return Source(plugin=names) if others else first
