"""The token bucket: what a key may spend, what comes back, and how long it must wait."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tokenmill.core.contract.events import Admitted, Finished
from tokenmill.core.contract.policy import Refusal
from tokenmill.core.requests.request_options import RequestOptions
from tokenmill.plugins.admission.token_bucket import TokenBucket, TokenBucketOptions

from .samples import finished_request
from .steps import FakeRequest

ANY = cast(Any, None)
KEY = RequestOptions(api_key_id="k")


class Door:
    """A bucket, and requests of 10 prompt tokens that come to it."""

    def __init__(self, **options: float) -> None:
        self.bucket = TokenBucket(TokenBucketOptions(**options))

    def ask(self, now: float, *, key: str | None = "k", max_tokens: int = 20) -> Refusal | None:
        """The answer to a request, which is queued if it may come in."""
        request = FakeRequest(
            request_id="r",
            options=RequestOptions(api_key_id=key),
            arrival_time=now,
            num_prompt_tokens=10,
            max_tokens=max_tokens,
        )
        refusal = self.bucket.admit(cast(Any, request), ANY)
        if refusal is None:
            event = Admitted(
                request_id="r",
                options=RequestOptions(api_key_id=key),
                num_prompt_tokens=10,
                max_tokens=max_tokens,
            )
            self.bucket.on_admitted(event)
        return refusal

    def finish(self, num_generation_tokens: int, *, key: str | None = "k") -> None:
        life = finished_request(
            options=RequestOptions(api_key_id=key),
            max_tokens=20,
            num_generation_tokens=num_generation_tokens,
        )
        self.bucket.on_finished(Finished(requests=(life,)))


def test_a_key_may_spend_its_burst_at_once_and_then_at_its_rate() -> None:
    door = Door(requests_per_minute=6, burst=30)  # one in ten seconds, three at once
    assert [door.ask(0.0) is None for _ in range(4)] == [True, True, True, False]
    refusal = door.ask(4.0)
    assert refusal is not None and refusal.is_rate_limit
    assert refusal.retry_after == pytest.approx(6.0)
    assert "6 requests per minute" in refusal.reason
    assert [door.ask(10.0) is None for _ in range(2)] == [True, False]
    assert [door.ask(1e6) is None for _ in range(4)] == [True, True, True, False]


def test_keys_do_not_share_a_bucket_and_requests_without_a_key_do() -> None:
    door = Door(requests_per_minute=1)
    assert [door.ask(0.0, key=key) is None for key in ("a", "b", "a", None, None)] == [
        True, True, False, True, False,
    ]  # fmt: skip


def test_what_was_not_generated_is_given_back() -> None:
    door = Door(requests_per_minute=0, tokens_per_minute=60)  # 30 tokens a request, 60 at once
    assert [door.ask(0.0) is None for _ in range(3)] == [True, True, False]
    door.finish(num_generation_tokens=5)  # 15 come back
    refusal = door.ask(0.0)
    assert refusal is not None and refusal.retry_after == pytest.approx(15.0)
    door.finish(num_generation_tokens=5)
    assert door.ask(0.0) is None


def test_a_request_larger_than_the_bucket_comes_in_when_it_is_full_and_leaves_a_debt() -> None:
    door = Door(requests_per_minute=0, tokens_per_minute=60)
    assert door.ask(0.0, max_tokens=170) is None
    refusal = door.ask(0.0)
    assert refusal is not None and refusal.retry_after == pytest.approx(120 + 30)


def test_further_choices_are_no_further_requests() -> None:
    door = Door(requests_per_minute=1)
    for choice_index, is_in in ((0, True), (1, True), (2, True)):
        request = FakeRequest(request_id="r", choice_index=choice_index)
        assert (door.bucket.admit(cast(Any, request), ANY) is None) is is_in


def test_the_choices_of_a_prompt_must_fit_together() -> None:
    door = Door(tokens_per_minute=60)
    assert door.ask(0.0) is None  # 30 tokens are left

    def admits(choice_index: int) -> bool:
        choice = FakeRequest(
            request_id="r",
            options=KEY,
            choice_index=choice_index,
            num_prompt_tokens=10,
            max_tokens=15,
        )
        return door.bucket.admit(cast(Any, choice), ANY) is None

    assert [admits(0), admits(1)] == [True, False]  # 25 tokens, and 40 together


def test_a_clock_that_goes_back_changes_nothing() -> None:
    door = Door(requests_per_minute=60, burst=1)
    assert door.ask(5.0) is None
    refusal = door.ask(1.0)
    assert refusal is not None and refusal.retry_after == pytest.approx(1.0)


def admits(bucket: TokenBucket, request_id: str, has_limits: bool = False, **fields: Any) -> bool:
    """Whether a request may come in; if so it is queued."""
    request = FakeRequest(
        request_id=request_id,
        options=RequestOptions(api_key_id="k", has_key_limits=has_limits),
        **fields,
    )
    if bucket.admit(cast(Any, request), ANY) is not None:
        return False
    bucket.on_admitted(
        Admitted(
            request_id=request_id,
            options=KEY,
            num_prompt_tokens=8,
            max_tokens=16,
        )
    )
    return True


def test_a_key_with_limits_of_its_own_is_left_to_the_server() -> None:
    bucket = TokenBucket(TokenBucketOptions(requests_per_minute=1))
    assert [admits(bucket, str(i), True) for i in range(3)] == [True] * 3
    assert [admits(bucket, str(i)) for i in range(2)] == [True, False]


def test_a_key_has_a_limited_number_of_live_calls() -> None:
    bucket = TokenBucket(TokenBucketOptions(max_concurrent_requests=2))
    assert [admits(bucket, name) for name in ("a", "b", "b", "c")] == [
        True,
        True,
        True,
        False,
    ]
    life = finished_request(
        request_id="b",
        options=KEY,
        max_tokens=16,
        num_generation_tokens=16,
    )
    bucket.on_finished(Finished(requests=(life,)))
    assert not admits(bucket, "c"), "the second prompt of b lives"
    bucket.on_finished(Finished(requests=(life,)))
    assert admits(bucket, "c")


def test_an_unlimited_key_keeps_nothing_of_requests_that_ended() -> None:
    bucket = TokenBucket(TokenBucketOptions())
    for i in range(10):
        assert admits(bucket, str(i))
        life = finished_request(request_id=str(i), options=KEY, max_tokens=16)
        bucket.on_finished(Finished(requests=(life,)))
    assert not any(bucket._live.values())
