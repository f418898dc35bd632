"""What keys with limits have used: the server counts, whatever the engine does."""

from __future__ import annotations

import pytest

from tokenmill.api.http.keys.usage import KeyLimits, KeyUsage
from tokenmill.core.errors import RateLimitedError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def usage(clock: Clock) -> KeyUsage:
    return KeyUsage(clock)


def call(usage: KeyUsage, limits: KeyLimits, *, num_tokens: int = 1) -> dict[str, str]:
    """The headers of a call that is admitted and ends at once."""
    metered = usage.begin("k", limits)
    metered.pay(num_tokens, 0)
    metered.end(0)
    return dict(metered.headers())


def test_an_allowance_comes_back_at_its_rate(usage: KeyUsage, clock: Clock) -> None:
    two = KeyLimits(requests_per_minute=2)
    for _ in range(2):
        call(usage, two)
    with pytest.raises(RateLimitedError, match="2 requests per minute") as refused:
        call(usage, two)
    assert refused.value.retry_after == pytest.approx(30)
    clock.now = 30.0
    headers = call(usage, two)
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-reset-requests"] == "1m0s"


def test_new_limits_apply_at_once(usage: KeyUsage) -> None:
    call(usage, KeyLimits(requests_per_minute=1))
    with pytest.raises(RateLimitedError):
        call(usage, KeyLimits(requests_per_minute=1))
    headers = call(usage, KeyLimits(requests_per_minute=3))
    assert headers["x-ratelimit-remaining-requests"] == "2"


def test_a_call_above_the_limit_of_tokens_costs_no_request(usage: KeyUsage) -> None:
    limits = KeyLimits(requests_per_minute=60, tokens_per_minute=100)
    call(usage, limits, num_tokens=60)
    metered = usage.begin("k", limits)
    with pytest.raises(RateLimitedError, match="100 tokens per minute"):
        metered.pay(30, 20)
    metered.end(0)
    headers = dict(metered.headers())
    assert headers["x-ratelimit-remaining-requests"] == "59"
    assert headers["x-ratelimit-remaining-tokens"] == "40"
    assert headers["x-ratelimit-reset-tokens"] == "36s"


def test_a_call_that_costs_more_than_a_minute_leaves_a_debt(usage: KeyUsage, clock: Clock) -> None:
    limits = KeyLimits(tokens_per_minute=60)
    assert call(usage, limits, num_tokens=90)["x-ratelimit-remaining-tokens"] == "0"
    clock.now = 30.5
    with pytest.raises(RateLimitedError) as refused:
        call(usage, limits)
    assert refused.value.retry_after == pytest.approx(0.5)


def test_calls_at_the_same_time_are_counted_until_they_end(usage: KeyUsage) -> None:
    one = KeyLimits(max_concurrent_requests=1)
    metered = usage.begin("k", one)
    with pytest.raises(RateLimitedError, match="1 concurrent"):
        usage.begin("k", one)
    usage.begin("other", one)
    for _ in range(2):
        metered.end(0)
    usage.begin("k", one)
    with pytest.raises(RateLimitedError):
        usage.begin("k", one)
