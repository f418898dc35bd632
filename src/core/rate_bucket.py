"""An allowance that fills at a steady rate, such as 600 requests per minute.

The algorithm is that of RFC 2697 with a single bucket, which fills up to its capacity. A request is
allowed if the bucket holds its price. A request that costs more than the capacity is allowed if the
bucket is full, and leaves a debt.
"""

from __future__ import annotations


class RateBucket:
    """The allowance of one sender, in requests or in tokens. The caller gives the clock's time."""

    def __init__(self, per_minute: float, burst: float, now: float) -> None:
        """`burst`: seconds whose allowance may be saved and spent at once."""
        self.per_minute = per_minute
        self._per_second = per_minute / 60
        self._capacity = self._balance = self._per_second * burst
        self._filled_at = now

    def balance(self, now: float) -> float:
        """The amount in the bucket; negative after a debt."""
        elapsed = max(0.0, now - self._filled_at)
        self._filled_at += elapsed
        self._balance = min(self._capacity, self._balance + elapsed * self._per_second)
        return self._balance

    def seconds_until(self, price: float, now: float) -> float:
        """Seconds until the bucket holds `price` or is full; 0 if it does now."""
        missing = min(price, self._capacity) - self.balance(now)
        return max(0.0, missing / self._per_second)

    def seconds_until_full(self, now: float) -> float:
        """Seconds until nothing more can be saved."""
        return self.seconds_until(self._capacity, now)

    def pay(self, price: float) -> None:
        """Take `price` out, even if that leaves a debt. A negative price is put in."""
        self._balance -= price
