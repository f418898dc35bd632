"""Sorts waiting requests by the chosen scheduling policy, or by arrival if the policy fails."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from ..contract.plugin_info import Source
from ..contract.policy import RequestView, SchedulingPolicy
from .failure_log import FailureLog
from .guard import DECIDES, FAILED, Guard

SLOT = "scheduling_policy"


class HasView(Protocol):
    """A request with a read-only view for policies."""

    @property
    def view(self) -> RequestView: ...


AnyRequest = TypeVar("AnyRequest", bound=HasView)


class WaitingOrder:
    """The scheduling policy behind its guard.

    It is not a pluggy hook, because a key is needed for every waiting request.
    """

    def __init__(self, policy: SchedulingPolicy, source: Source, log: FailureLog) -> None:
        self._policy = policy
        rule = replace(DECIDES, instead="requests go in order of arrival")
        self.guard = Guard(self._sort, source, SLOT, rule, log)

    def sort(self, requests: Iterable[AnyRequest], now: float) -> list[AnyRequest]:
        """The requests, smallest key first. Requests with equal keys stay in the given order."""
        given = list(requests)
        ordered: Any = FAILED if self.guard.is_out else self.guard(given, now)
        if ordered is FAILED:
            return sorted(given, key=lambda request: request.view.arrival_time)
        found: list[AnyRequest] = ordered
        return found

    def _sort(self, requests: list[AnyRequest], now: float) -> list[AnyRequest]:
        key = self._policy.key
        return sorted(requests, key=lambda request: key(request.view, now))
