"""The chosen scheduling policy, contained: where its keys fail, requests go in order of arrival."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ..contract.plugin_info import Source
from ..contract.policy import RequestView, SchedulingPolicy
from .failure_log import FailureLog

MAX_FAILURES = 3
SLOT = "scheduling_policy"

AnyRequest = TypeVar("AnyRequest", bound=RequestView)


class WaitingOrder:
    """Sorts requests by a policy's key; three failures in a row and the policy is not asked again.

    This is no pluggy hook, because a key is needed for every waiting request.
    """

    def __init__(self, policy: SchedulingPolicy, source: Source, failures: FailureLog) -> None:
        self._policy = policy
        self._source = source
        self._failures = failures
        self._streak = 0

    def sort(self, requests: Iterable[AnyRequest], now: float) -> list[AnyRequest]:
        """The requests, smallest key first; equal ones stay in the order that they came in."""
        given = list(requests)
        if self._streak < MAX_FAILURES:
            try:
                ordered = sorted(given, key=lambda request: self._policy.key(request, now))
            except Exception as error:
                self._fail(error)
            else:
                self._streak = 0
                return ordered
        return sorted(given, key=lambda request: request.arrival_time)

    def _fail(self, error: Exception) -> None:
        self._streak += 1
        self._failures.record(self._source, SLOT, error, "fallback")
        if self._streak == MAX_FAILURES:
            self._failures.take_out(self._source, SLOT, "requests go in order of arrival")
