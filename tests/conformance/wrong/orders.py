"""Wrong orders of the waiting requests."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tokenmill.testing import SchedulingPolicyConformance

engine_numbers = itertools.count()
"""Makes a policy differ from one engine to the next."""


class Order:
    """A scheduling policy that is one function."""

    uses_priority = False

    def __init__(self, key: Callable[[Any, float, dict[str, Any]], Any]) -> None:
        self._key = key
        self._memory: dict[str, Any] = {}

    def key(self, request: Any, now: float) -> Any:
        return self._key(request, now, self._memory)


class TestKeyIsNotANumber(SchedulingPolicyConformance):
    fails = "test_keys_are_tuples_of_numbers"

    @pytest.fixture
    def scheduling_policy(self) -> object:
        return Order(lambda request, now, memory: (float("nan"),))


class TestKeyChanges(SchedulingPolicyConformance):
    fails = "test_the_same_request_has_the_same_key"

    @pytest.fixture
    def scheduling_policy(self) -> object:
        def key(request: Any, now: float, memory: dict[str, Any]) -> Any:
            memory["asked"] = memory.get("asked", 0) + 1
            return (request.arrival_time, memory["asked"])

        return Order(key)


class TestIgnoresPriority(SchedulingPolicyConformance):
    fails = "test_priority_counts_if_it_is_used"

    @pytest.fixture
    def scheduling_policy(self) -> object:
        order = Order(lambda request, now, memory: (request.arrival_time,))
        order.uses_priority = True
        return order


class TestRaisesForThoseWhoWaited(SchedulingPolicyConformance):
    fails = "test_it_orders_every_queue_itself"

    @pytest.fixture
    def scheduling_policy(self) -> object:
        def key(request: Any, now: float, memory: dict[str, Any]) -> Any:
            return (request.arrival_time, 1 // (now - request.arrival_time < 0.12))

        return Order(key)


class TestNewestFirst(SchedulingPolicyConformance):
    fails = "test_nobody_starves"

    @pytest.fixture
    def scheduling_policy(self) -> object:
        return Order(lambda request, now, memory: (-request.arrival_time,))


class TestKeyChangesThePrompt(SchedulingPolicyConformance):
    fails = "test_tokens_are_exact"

    @pytest.fixture
    def scheduling_policy(self) -> object:
        def key(request: Any, now: float, memory: dict[str, Any]) -> Any:
            request._request.token_ids[0] = 0
            return (request.arrival_time,)

        return Order(key)


class TestOrderDiffersFromEngineToEngine(SchedulingPolicyConformance):
    fails = "test_it_is_deterministic"

    @pytest.fixture
    def scheduling_policy(self) -> object:
        def key(request: Any, now: float, memory: dict[str, Any]) -> Any:
            if "number" not in memory:
                memory["number"] = next(engine_numbers)
            return (request.arrival_time // 1, request.num_tokens * (-1) ** memory["number"])

        return Order(key)
