"""Wrong orders of the waiting requests."""

from __future__ import annotations

import itertools
from typing import Any

from tokenmill.testing.conformance.policies import scheduling_policy as suite

from . import fails

engine_numbers = itertools.count()
"""Makes a policy differ from one engine to the next."""


class InOrder:
    """Right: in the order of arrival."""

    uses_priority = False

    def key(self, request: Any, now: float) -> Any:
        return (request.arrival_time,)


@fails(suite.check_keys_are_tuples_of_numbers)
class KeyIsNotANumber(InOrder):
    def key(self, request: Any, now: float) -> Any:
        return (float("nan"),)


@fails(suite.check_the_same_request_has_the_same_key)
class KeyChanges(InOrder):
    num_calls = 0

    def key(self, request: Any, now: float) -> Any:
        self.num_calls += 1
        return (request.arrival_time, self.num_calls)


@fails(suite.check_priority_counts_if_it_is_used)
class IgnoresPriority(InOrder):
    uses_priority = True


@fails(suite.check_it_orders_every_queue_itself)
class RaisesAfterAWait(InOrder):
    def key(self, request: Any, now: float) -> Any:
        return (request.arrival_time, 1 // (now - request.arrival_time < 0.12))


@fails(suite.check_nobody_starves)
class NewestFirst(InOrder):
    def key(self, request: Any, now: float) -> Any:
        return (-request.arrival_time,)


@fails(suite.check_tokens_are_exact)
class ChangesThePrompt(InOrder):
    def key(self, request: Any, now: float) -> Any:
        request._request.token_ids[0] = 0
        return (request.arrival_time,)


@fails(suite.check_it_is_deterministic)
class DiffersFromEngineToEngine(InOrder):
    def __init__(self) -> None:
        self.sign = (-1) ** next(engine_numbers)

    def key(self, request: Any, now: float) -> Any:
        return (request.arrival_time // 1, request.num_tokens * self.sign)
