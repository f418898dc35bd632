"""The limits of keys in --api-key-file: what each key has used, and the headers that say so.

The server's own process counts, so that a restart of the engine forgets nothing.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ....core.errors import RateLimitedError
from ....core.rate_bucket import RateBucket

BURST_SECONDS = 60.0
"""A key may save the unused allowance of a minute, and spend it at once."""
CONCURRENT_RETRY_SECONDS = 1.0
"""An estimate: the end of a live call is not known."""
Buckets = dict[tuple[str, str], RateBucket]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """The limits of one API key; 0: no limit. The server applies them before the engine."""

    requests_per_minute: float = 0.0
    tokens_per_minute: float = 0.0
    """Prompts and answers together."""
    max_concurrent_requests: int = 0


class KeyUsage:
    """The requests and tokens of keys with limits. Each such key has its own buckets."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.live: Counter[str] = Counter()
        """Number of live calls, by key."""
        self._buckets: Buckets = {}

    def begin(self, key: str, limits: KeyLimits) -> MeteredCall:
        """Begin a call, which pays one request.

        Raises RateLimitedError if a limit is reached. The price of a call in tokens is known only
        after tokenization, see MeteredCall.pay.
        """
        call = MeteredCall(self, key, limits)
        call.check(1)
        most = limits.max_concurrent_requests
        if 0 < most <= self.live[key]:
            raise RateLimitedError(
                f"this API key is limited to {most} concurrent requests; try again when one has "
                "ended",
                retry_after=CONCURRENT_RETRY_SECONDS,
            )
        self.live[key] += 1
        call.is_live = True
        for bucket in call.buckets("requests"):
            bucket.pay(1)
        return call

    def bucket(self, key: str, unit: str, per_minute: float) -> RateBucket | None:
        """The bucket of a key; None without a limit. It is a new one if the limit has changed."""
        if not per_minute:
            return None
        found = self._buckets.get((key, unit))
        if found is None or found.per_minute != per_minute:
            found = RateBucket(per_minute, BURST_SECONDS, self.clock())
            self._buckets[key, unit] = found
        return found


@dataclass(slots=True)
class MeteredCall:
    """One call of a key with limits. `end` must be called."""

    usage: KeyUsage
    key: str
    limits: KeyLimits
    is_live: bool = False
    num_reserved: int | None = None
    """Tokens that the call may generate, and has paid. None: it is not admitted."""

    def check(self, num_tokens: int) -> None:
        """Raise RateLimitedError unless the key may send another request with these tokens."""
        for unit, price in (("requests", 0 if self.is_live else 1), ("tokens", num_tokens)):
            for bucket in self.buckets(unit):
                wait = bucket.seconds_until(price, self.usage.clock())
                if wait > 0:
                    raise RateLimitedError(
                        f"this API key is limited to {bucket.per_minute:g} {unit} per minute; try "
                        f"again in {wait:.3g} seconds",
                        retry_after=wait,
                    )

    def pay(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Pay for prompts and the longest possible answers. Raises RateLimitedError."""
        self.check(num_prompt_tokens + max_tokens)
        for bucket in self.buckets("tokens"):
            bucket.pay(num_prompt_tokens + max_tokens)
        self.num_reserved = max_tokens

    def end(self, num_generated: int) -> None:
        """Give back the tokens that were not generated, or the request if it was not admitted.

        Safe to call twice.
        """
        if not self.is_live:
            return
        self.is_live = False
        self.usage.live[self.key] -= 1
        unused = 1 if self.num_reserved is None else max(0, self.num_reserved - num_generated)
        for bucket in self.buckets("requests" if self.num_reserved is None else "tokens"):
            bucket.pay(-unused)

    def headers(self) -> Iterator[tuple[str, str]]:
        """OpenAI's headers of the key's limits."""
        now = self.usage.clock()
        for unit in ("requests", "tokens"):
            for bucket in self.buckets(unit):
                left = max(0, math.floor(bucket.balance(now)))
                yield f"x-ratelimit-limit-{unit}", str(math.floor(bucket.per_minute))
                yield f"x-ratelimit-remaining-{unit}", str(left)
                yield f"x-ratelimit-reset-{unit}", _duration(bucket.seconds_until_full(now))

    def buckets(self, unit: str) -> Iterator[RateBucket]:
        """The bucket of requests or tokens, if there is such a limit."""
        limits = self.limits
        rates = {"requests": limits.requests_per_minute, "tokens": limits.tokens_per_minute}
        bucket = self.usage.bucket(self.key, unit, rates[unit])
        if bucket is not None:
            yield bucket


def _duration(seconds: float) -> str:
    """A duration as OpenAI's headers write it: "120ms", "7.5s" or "1m2s"."""
    if seconds < 1:
        return f"{math.ceil(1000 * seconds)}ms"
    minutes, rest = divmod(math.ceil(10 * seconds) / 10, 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"
