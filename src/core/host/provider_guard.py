"""Contains the failures of a provider that is called directly, without a pluggy hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..contract.plugin_info import Source
from .decision_hook import MAX_FAILURES
from .failure_log import FailureLog

Answer = TypeVar("Answer")


class ProviderGuard:
    """Counts a provider's failures; after three in a row of one kind of call it is out."""

    def __init__(self, source: Source, slot: str, failures: FailureLog, *, instead: str) -> None:
        """`instead` says in the log what happens once the provider is out."""
        self.is_out = False
        """Whether the provider must not be called any more."""
        self._source = source
        self._slot = slot
        self._failures = failures
        self._instead = instead
        self._streaks: dict[str, int] = {}
        """Failures in a row, by kind of call, where the last call failed."""

    def ask(self, kind: str, call: Callable[[], Answer], otherwise: Answer) -> Answer:
        """The answer of `call`, or `otherwise` if it raised or the provider is out."""
        if self.is_out:
            return otherwise
        try:
            answer = call()
        except Exception as error:
            self._fail(kind, error)
            return otherwise
        if self._streaks:
            self._streaks.pop(kind, None)
        return answer

    def _fail(self, kind: str, error: Exception) -> None:
        streak = self._streaks[kind] = self._streaks.get(kind, 0) + 1
        self._failures.record(self._source, self._slot, error, "fallback")
        if streak == MAX_FAILURES:
            self.is_out = True
            self._failures.take_out(self._source, self._slot, self._instead)
