"""Amounts of everything that is limited."""

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Requests, tokens and concurrent calls."""

    requests: float = 0
    tokens: float = 0
    slots: float = 0
    """Concurrent calls."""

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            requests=self.requests + other.requests,
            tokens=self.tokens + other.tokens,
            slots=self.slots + other.slots,
        )

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(
            requests=self.requests - other.requests,
            tokens=self.tokens - other.tokens,
            slots=self.slots - other.slots,
        )

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.requests or self.tokens or self.slots)

    def covers(self, price: "Amount") -> bool:
        left = self - price
        return left.requests >= 0 and left.tokens >= 0 and left.slots >= 0

    def at_least_none(self) -> "Amount":
        """Without what is negative."""
        return Amount(
            requests=max(0, self.requests), tokens=max(0, self.tokens), slots=max(0, self.slots)
        )

    def as_list(self) -> list[float]:
        """In the order of the script."""
        return list(astuple(self))


NOTHING = Amount()
