"""The chosen scheduling policy, contained: where its keys fail, requests go in order of arrival."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ..contract.plugin_info import Source
from ..contract.policy import RequestView, SchedulingPolicy
from .failure_log import FailureLog
from .provider_guard import ProviderGuard

SLOT = "scheduling_policy"

AnyRequest = TypeVar("AnyRequest", bound=RequestView)


class WaitingOrder:
    """Sorts requests by a policy's key; three failures in a row and the policy is not asked again.

    This is no pluggy hook, because a key is needed for every waiting request.
    """

    def __init__(self, policy: SchedulingPolicy, source: Source, failures: FailureLog) -> None:
        self._policy = policy
        self._guard = ProviderGuard(
            source, SLOT, failures, instead="requests go in order of arrival"
        )

    def sort(self, requests: Iterable[AnyRequest], now: float) -> list[AnyRequest]:
        """The requests, smallest key first; equal ones stay in the order that they came in."""
        given = list(requests)
        ordered = self._guard.ask(
            "key", lambda: sorted(given, key=lambda r: self._policy.key(r, now)), None
        )
        if ordered is None:
            return sorted(given, key=lambda request: request.arrival_time)
        return ordered
