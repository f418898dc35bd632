"""A token bucket per API key, which limits the requests and tokens of a key per minute, and the
requests that a key may have at the same time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from ...plugin import (
    Admitted,
    Finished,
    Load,
    PluginContext,
    RateBucket,
    Refusal,
    Registry,
    RequestView,
    hookimpl,
    kinds,
)

TOKENMILL_API = (1, 1)
CONCURRENT_RETRY_SECONDS = 1.0
"""An estimate: the end of a live request is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBucketOptions:
    """Options of [admission.token-bucket]."""

    requests_per_minute: Annotated[float, Meta(ge=0)] = field(
        default=0.0,
        metadata={
            "help": "requests per minute of one API key; 0: no limit. This limit and the next two "
            "are for keys that are not in --api-key-file"
        },
    )
    tokens_per_minute: Annotated[float, Meta(ge=0)] = field(
        default=0.0,
        metadata={"help": "tokens per minute of one API key, prompts and answers; 0: no limit"},
    )
    max_concurrent_requests: Annotated[int, Meta(ge=0)] = field(
        default=0,
        metadata={"help": "requests of one API key that run or wait at one time; 0: no limit"},
    )
    burst: Annotated[float, Meta(gt=0)] = field(
        default=60.0,
        metadata={
            "help": "seconds; a key may save the unused allowance of this time and spend it at once"
        },
    )


class TokenBucket:
    """Refuses requests of an API key that has spent its allowance, or has too many live requests.

    Requests without a key share one bucket. A request pays for its prompt and `max_tokens` on
    arrival. When it ends, it gets back the tokens that it did not generate. There is one
    bucket per key of the server.
    """

    def __init__(self, options: TokenBucketOptions) -> None:
        self._options = options
        self._has_limits = any(
            (
                options.requests_per_minute,
                options.tokens_per_minute,
                options.max_concurrent_requests,
            )
        )
        self._requests: dict[str | None, RateBucket] = {}
        self._tokens: dict[str | None, RateBucket] = {}
        self._live: dict[str | None, Counter[str]] = {}
        """By key and request id, for live calls: the number of choices that have not ended."""

    @hookimpl
    def admit(self, request: RequestView, load: Load) -> Refusal | None:
        """Check the price of a choice together with the choices before it.

        The engine queues all choices of a prompt or none, and they pay only when they are queued.
        """
        limits = self._options
        if request.options.has_key_limits or not self._has_limits:
            return None  # the server applies the limits of the key file
        price = request.num_prompt_tokens + (request.choice_index + 1) * request.max_tokens
        rates = (
            (self._requests, limits.requests_per_minute, 1.0, "requests"),
            (self._tokens, limits.tokens_per_minute, float(price), "tokens"),
        )
        if self._has_too_many(request, limits.max_concurrent_requests):
            return Refusal(
                reason=f"this API key is limited to {limits.max_concurrent_requests} concurrent "
                "requests; try again when one has ended",
                retry_after=CONCURRENT_RETRY_SECONDS,
                is_rate_limit=True,
            )
        for buckets, per_minute, cost, unit in rates:
            wait = self._seconds_until(buckets, per_minute, cost, request)
            if wait > 0:
                return Refusal(
                    reason=f"this API key is limited to {per_minute:g} {unit} per minute; "
                    f"try again in {wait:.3g} seconds",
                    retry_after=wait,
                    is_rate_limit=True,
                )
        return None

    @hookimpl
    def on_admitted(self, event: Admitted) -> None:
        key, num_tokens = event.options.api_key_id, event.num_prompt_tokens
        self._live.setdefault(key, Counter())[event.request_id] += event.n
        self._pay(self._requests, key, 1)
        self._pay(self._tokens, key, num_tokens + event.n * event.max_tokens)

    @hookimpl
    def on_finished(self, event: Finished) -> None:
        for request in event.requests:
            unused = request.max_tokens - request.num_generation_tokens
            self._pay(self._tokens, request.options.api_key_id, -unused)
            self._end_choice(request.options.api_key_id, request.request_id)

    def _has_too_many(self, request: RequestView, limit: int) -> bool:
        """Whether the key has `limit` live calls, not counting the call of this request."""
        live = self._live.get(request.options.api_key_id, Counter())
        return 0 < limit <= len(live) - (request.request_id in live)

    def _end_choice(self, key: str | None, request_id: str) -> None:
        live = self._live.get(key)
        if live is not None and request_id in live:
            live[request_id] -= 1
            if not live[request_id]:
                del live[request_id]

    def _seconds_until(
        self,
        buckets: dict[str | None, RateBucket],
        per_minute: float,
        price: float,
        request: RequestView,
    ) -> float:
        if not per_minute:
            return 0.0
        key, now = request.options.api_key_id, request.arrival_time
        if key not in buckets:
            buckets[key] = RateBucket(per_minute, self._options.burst, now)
        return buckets[key].seconds_until(price, now)

    @staticmethod
    def _pay(buckets: dict[str | None, RateBucket], key: str | None, price: float) -> None:
        if key in buckets:
            buckets[key].pay(price)


def make_token_bucket(context: PluginContext, options: TokenBucketOptions) -> TokenBucket:
    """Limits the requests and tokens of each API key that is not in --api-key-file."""
    return TokenBucket(options)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.ADMISSION, "token-bucket", make_token_bucket, options=TokenBucketOptions)
