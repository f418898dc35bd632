"""The chosen draft length policy, contained: where it fails, nothing is drafted."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract.draft_length import DraftedStep, DraftLengthPolicy
from ..contract.plugin_info import Source
from ..contract.policy import RequestView
from ..contract.speculation import SpeculationLimits
from ..errors import PluginError
from .failure_log import FailureLog
from .provider_guard import ProviderGuard

SLOT = "draft_length"


class GuardedDraftLength:
    """A DraftLengthPolicy that never raises, and whose answers keep the limits."""

    def __init__(self, policy: DraftLengthPolicy, source: Source, failures: FailureLog) -> None:
        self._policy = policy
        self._guard = ProviderGuard(source, SLOT, failures, instead="nothing is drafted any more")

    def choose(self, requests: Sequence[RequestView], limits: SpeculationLimits) -> Sequence[int]:
        """The policy's lengths; 0 for every request if it failed."""
        nothing = [0] * len(requests)
        return self._guard.ask("choose", lambda: self._checked(requests, limits), nothing)

    def observe(self, step: DraftedStep) -> None:
        """Show the policy a committed step."""
        self._guard.ask("observe", lambda: self._policy.observe(step), None)

    def forget(self, request_id: str) -> None:
        """Tell the policy that a request has ended."""
        self._guard.ask("forget", lambda: self._policy.forget(request_id), None)

    def _checked(self, requests: Sequence[RequestView], limits: SpeculationLimits) -> Sequence[int]:
        lengths = self._policy.choose(requests, limits)
        if not isinstance(lengths, Sequence) or len(lengths) != len(requests):
            raise PluginError(
                f"'choose' answers one length per request, {len(requests)} here, got {lengths!r}"
            )
        for length in lengths:
            if type(length) is not int or not 0 <= length <= limits.num_speculative_tokens:
                raise PluginError(
                    f"'choose' answers lengths from 0 to {limits.num_speculative_tokens}, "
                    f"got {length!r}"
                )
        return lengths
