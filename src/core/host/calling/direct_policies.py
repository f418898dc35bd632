"""The policies that the engine calls directly, behind their guards.

Pluggy does not call them: a scheduling policy gives a key for every waiting request, and a draft
length policy has several methods that share records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from ...contract.plugin_info import Source
from ...contract.policy import RequestView, SchedulingPolicy
from ...contract.providers.draft_length import DraftedStep, DraftLengthPolicy
from ...contract.providers.speculation import SpeculationLimits
from ...errors import PluginError
from .failure_log import FailureLog
from .guard import DECIDES, FAILED, Guard


class HasView(Protocol):
    @property
    def view(self) -> RequestView: ...


AnyRequest = TypeVar("AnyRequest", bound=HasView)


class WaitingOrder:
    """The scheduling policy behind its guard. If it fails, requests go in order of arrival."""

    def __init__(self, policy: SchedulingPolicy, source: Source, log: FailureLog) -> None:
        self._policy = policy
        rule = replace(DECIDES, instead="requests go in order of arrival")
        self.guard = Guard(self._sort, source, "scheduling_policy", rule, log)

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


class GuardedDraftLength:
    """A DraftLengthPolicy that never raises, and whose answers are within the limits.

    If the policy behind it fails, no drafts are asked for.
    """

    def __init__(self, policy: DraftLengthPolicy, source: Source, log: FailureLog) -> None:
        rule = replace(DECIDES, instead="no drafts are proposed any more")
        self._policy = policy
        self._choose = Guard(self._checked, source, "draft_length.choose", rule, log)
        self._observe = Guard(policy.observe, source, "draft_length.observe", rule, log)
        self._forget = Guard(policy.forget, source, "draft_length.forget", rule, log)
        self.guards = (self._choose, self._observe, self._forget)

    def choose(self, requests: Sequence[RequestView], limits: SpeculationLimits) -> Sequence[int]:
        """The policy's lengths; 0 for every request if it failed."""
        answer = self._ask(self._choose, requests, limits)
        lengths: Sequence[int] = [0] * len(requests) if answer is FAILED else answer
        return lengths

    def observe(self, step: DraftedStep) -> None:
        self._ask(self._observe, step)

    def forget(self, engine_id: str) -> None:
        """Report to the policy that a request has ended."""
        self._ask(self._forget, engine_id)

    def _ask(self, guard: Guard, *arguments: object) -> Any:
        """The answer, or FAILED. A policy that was taken out of one method is not called at all."""
        return FAILED if any(one.is_out for one in self.guards) else guard(*arguments)

    def _checked(self, requests: Sequence[RequestView], limits: SpeculationLimits) -> Sequence[int]:
        lengths = self._policy.choose(requests, limits)
        if not isinstance(lengths, Sequence) or len(lengths) != len(requests):
            raise PluginError(
                f"'choose' must return one length for each of {len(requests)} requests, "
                f"got {lengths!r}"
            )
        for length in lengths:
            if type(length) is not int or not 0 <= length <= limits.num_speculative_tokens:
                raise PluginError(
                    f"'choose' must return lengths from 0 to {limits.num_speculative_tokens}, "
                    f"got {length!r}"
                )
        return lengths
