"""The memory of all bodies is bounded, and large ones keep out no short request."""

from __future__ import annotations

import pytest

from tokenmill.api.http.body_budget import BODIES_BYTES, UNCOUNTED_BYTES, BodyBudget
from tokenmill.api.http.errors import APIError


def test_large_bodies_use_up_the_memory_but_short_ones_arrive() -> None:
    budget = BodyBudget(1 << 20)
    with budget.account() as large, budget.account() as short, budget.account() as growing:
        for _ in range(UNCOUNTED_BYTES + BODIES_BYTES >> 14):
            large.take(1 << 14)
        for _ in range(UNCOUNTED_BYTES >> 10):
            short.take(1 << 10)
        growing.take(UNCOUNTED_BYTES)
        with pytest.raises(APIError, match="too many large bodies"):
            growing.take(1)
    with budget.account() as next_one:
        next_one.take(UNCOUNTED_BYTES + BODIES_BYTES)
        with pytest.raises(APIError):
            next_one.take(1)
