"""The account of one API key at this server: what it leased from the key's bucket in the store."""

import asyncio
import uuid
from collections import Counter
from dataclasses import dataclass, field

from tokenmill.plugin import Refusal

from .amounts import NOTHING, Amount
from .options import KeyLimits

CONCURRENT_RETRY_SECONDS = 1.0
"""An estimate: the end of a live request is not known."""
PROMISE_SECONDS = 1.0
"""Time in which a lease is kept for the request that it was taken for. A request that is still not
queued will not be."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """A request that waits for a lease of its price."""

    price: Amount
    returnable: Amount
    """The part of the price that may come back: the answers, and the slot."""
    is_answered: asyncio.Future[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What an account tells the store: all in absolute amounts, so that it may be repeated."""

    taken: Amount
    held: Amount
    known_taken: Amount
    known_held: Amount
    demands: tuple[Demand, ...]
    sent_at: float


@dataclass(slots=True, kw_only=True, eq=False)
class Account:
    """Leases of one key, and the bucket as the store last described it.

    A lease is free, or promised to a request that has not been queued yet, or reserved for a live
    request, or spent. The store knows `held`, which comes back if this server is lost.
    """

    name: str
    """The name of the bucket in the store."""
    record: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The name of this account in the bucket. An account of the same key that is made later has
    another one, because it begins with other numbers."""
    limits: KeyLimits
    burst: float
    lease_seconds: float
    pool: Amount = NOTHING
    """Free and promised."""
    promised: Amount = NOTHING
    reserved: Amount = NOTHING
    """What live requests may still give back."""
    taken: Amount = NOTHING
    """All that was leased so far, without what went back."""
    has_news: bool = False
    """Whether a request has ended since the last message."""
    known_taken: Amount = NOTHING
    """`taken` and `held` as the store confirmed them."""
    known_held: Amount = NOTHING
    valid_until: float = 0.0
    """Until then, the store keeps the leases for this server. This and the other times are of the
    monotonic clock."""
    used_at: float = 0.0
    balance: Amount | None = None
    """What the bucket in the store had at `seen_at`."""
    seen_at: float = 0.0
    demands: list[Demand] = field(default_factory=list)
    live: Counter[str] = field(default_factory=Counter)
    """Number of choices that have not ended, by the id of their call."""

    # For requests

    def covers(self, price: Amount, now: float) -> bool:
        return not price or (now < self.valid_until and self.pool.covers(price))

    def promise(self, price: Amount, now: float) -> bool:
        """Keep a part of the free leases for a request. False: there is too little."""
        self.used_at = now
        if not self.covers(self.promised + price, now):
            return False
        self.promised += price
        return True

    def pay(self, price: Amount, returnable: Amount) -> None:
        """Spend a lease. `returnable` is the part of it that may come back."""
        self.pool -= price
        self.promised = (self.promised - price).at_least_none()
        self.reserved += returnable

    def settle(self, returnable: Amount, unused: Amount) -> None:
        """A part of a request has ended: what it did not use is free."""
        self.reserved -= returnable
        self.pool += unused
        self.has_news = True

    def refusal(self, price: Amount, now: float) -> tuple[str, Refusal]:
        """The limit that no lease covers, and the refusal, with the texts of token-bucket."""
        assert self.balance is not None, "the store has answered"
        if price.slots > self.balance.slots:
            return "concurrent", Refusal(
                reason=f"this API key is limited to {self.limits.max_concurrent_requests} "
                "concurrent requests; try again when one has ended",
                retry_after=CONCURRENT_RETRY_SECONDS,
                is_rate_limit=True,
            )
        rows = zip(
            ("requests", "tokens"),
            self.limits.per_minute,
            self.limits.capacity(self.burst),
            self.balance.as_list(),
            price.as_list(),
            strict=False,
        )
        for unit, per_minute, capacity, balance, needed in rows:
            if not per_minute:
                continue
            missing = min(needed, capacity) - balance - (now - self.seen_at) * per_minute / 60
            if missing > 0:
                wait = missing * 60 / per_minute
                return unit, Refusal(
                    reason=f"this API key is limited to {per_minute:g} {unit} per minute; "
                    f"try again in {wait:.3g} seconds",
                    retry_after=wait,
                    is_rate_limit=True,
                )
        return "tokens", Refusal(
            reason="this API key has just reached a limit; try again", is_rate_limit=True
        )

    # For the store

    @property
    def held(self) -> Amount:
        """What comes back if this server is lost."""
        return self.pool + self.reserved

    def is_due(self, now: float) -> bool:
        """Whether the store should get a message: for a demand, to return free leases, to say that
        others were spent, or to keep them."""
        self._drop_promises(now)
        is_old = now > self.valid_until - self.lease_seconds * 2 / 3
        has_any = self.held or self.known_held
        return bool(self.demands or self._free or self.has_news or (has_any and is_old))

    def is_done(self, now: float) -> bool:
        """Whether the account can be forgotten: it has no lease, not even for the store."""
        kept_until = max(self.valid_until, self.used_at + PROMISE_SECONDS)
        return not (self.demands or self.held or self.known_held or now < kept_until)

    def message(self, now: float) -> Message:
        """The next message. It returns all free leases: from now on, they cannot be spent."""
        free = self._free
        self.pool -= free
        self.taken -= free
        self.has_news = False
        self.demands, demands = [], tuple(self.demands)
        return Message(
            taken=self.taken,
            held=self.held,
            known_taken=self.known_taken,
            known_held=self.known_held,
            demands=tuple(one for one in demands if not one.is_answered.done()),
            sent_at=now,
        )

    def take_answer(self, message: Message, granted: str, balance: Amount, now: float) -> None:
        """Note what the store answered to `message`: for each demand "1" or "0"."""
        total = returnable = NOTHING
        for demand, flag in zip(message.demands, granted, strict=True):
            if flag == "1":
                total, returnable = total + demand.price, returnable + demand.returnable
                if not demand.is_answered.done():  # else its sender has left: the lease is free
                    self.promised += demand.price
        self.pool += total
        self.taken += total
        self.known_taken, self.known_held = self.taken, message.held + returnable
        self.valid_until = message.sent_at + self.lease_seconds
        self.balance, self.seen_at, self.used_at = balance, now, now

    @property
    def _free(self) -> Amount:
        return (self.pool - self.promised).at_least_none()

    def _drop_promises(self, now: float) -> None:
        if self.promised and now > self.used_at + PROMISE_SECONDS:
            self.promised = NOTHING
