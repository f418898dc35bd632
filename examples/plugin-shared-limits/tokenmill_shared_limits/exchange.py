"""The task that talks to the store, for all accounts of this server."""

import asyncio
import random
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic

from tokenmill.plugin import ConfigError, PluginContext, get_logger

from .account import Account, Demand
from .amounts import Amount
from .store import Store, StoreError

TICK_SECONDS = 0.25
"""Time between two looks at leases that must be kept or returned. A demand waits for no tick."""
BATCH = 256
"""Accounts of one call. The store serves no one else during a script, but between two of them."""
FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 5.0

_log = get_logger("shared_limits")


class Exchange:
    """Sends the messages of all accounts that are due in one call, and then those that have become
    due meanwhile. So the calls grow with the load, and not their number."""

    def __init__(self, store: Store, context: PluginContext, *, when_lost: str) -> None:
        """`when_lost`: what happens to requests then, for the log."""
        self._store = store
        self._when_lost = when_lost
        self._accounts: dict[str, Account] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._lost_at: float | None = None
        metrics = context.metrics
        self._up = metrics.gauge("store_up", "Whether the store of the limits answers.")
        self._seconds = metrics.histogram(
            "store_seconds",
            "Duration of the calls of the store.",
            (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1),
        )

    @property
    def is_running(self) -> bool:
        return self._task is not None

    @property
    def is_lost(self) -> bool:
        """Whether the store does not answer."""
        return self._lost_at is not None

    async def start(self) -> None:
        """Connect, and begin. Raises ConfigError if the store refuses access; a store that is away
        is lost."""
        try:
            await self._store.probe()
        except StoreError as error:
            self._note_lost(error)
        else:
            self._up.set(1)
        self._task = asyncio.create_task(self._run(), name="shared-limits")

    async def close(self) -> None:
        """Return all leases, if the store answers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
            if not self.is_lost:
                with suppress(StoreError):
                    await self._send([a for a in self._accounts.values() if a.held or a.known_held])
        await self._store.close()

    def add(self, account: Account) -> None:
        self._accounts[account.name] = account

    def find(self, name: str) -> Account | None:
        return self._accounts.get(name)

    def wake(self) -> None:
        """An account has something to return."""
        self._wake.set()

    async def ask(self, account: Account, price: Amount, returnable: Amount) -> None:
        """Ask for a lease. Returns when the store has answered, or is lost."""
        answered = asyncio.get_running_loop().create_future()
        demand = Demand(price=price, returnable=returnable, is_answered=answered)
        account.demands.append(demand)
        self._wake.set()
        await demand.is_answered

    async def _run(self) -> None:
        while True:
            if self.is_lost:
                await self._wait_until_back()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS if self._accounts else None):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._send(self._due())
            except StoreError as error:
                self._note_lost(error)

    def _due(self) -> list[Account]:
        """The accounts that need the store now. Forgets those that are done."""
        now = monotonic()
        for account in [one for one in self._accounts.values() if one.is_done(now)]:
            del self._accounts[account.name]
        return [account for account in self._accounts.values() if account.is_due(now)]

    async def _send(self, accounts: list[Account]) -> None:
        for start in range(0, len(accounts), BATCH):
            now = monotonic()
            batch = [(one, one.message(now)) for one in accounts[start : start + BATCH]]
            try:
                answers = await self._store.exchange(batch)
                end = monotonic()
                self._seconds.observe(end - now)
                for (account, message), answer in zip(batch, answers, strict=True):
                    account.take_answer(message, *answer, end)
            finally:
                _answer(demand for _, message in batch for demand in message.demands)

    async def _wait_until_back(self) -> None:
        """Call the store with growing pauses until it answers."""
        seconds = FIRST_RETRY_SECONDS
        while True:
            for account in self._accounts.values():  # of requests that came before it was lost
                _answer(account.demands)
            await asyncio.sleep(seconds * random.uniform(0.5, 1))
            seconds = min(2 * seconds, LAST_RETRY_SECONDS)
            with suppress(StoreError, ConfigError):
                await self._store.probe()
                break
        assert self._lost_at is not None
        _log.info("limits_store_back", seconds=round(monotonic() - self._lost_at, 1))
        self._lost_at = None
        self._up.set(1)

    def _note_lost(self, error: StoreError) -> None:
        self._lost_at = monotonic()
        self._up.set(0)
        _log.warning(
            "limits_store_lost",
            address=self._store.address,
            reason=str(error),
            requests=self._when_lost,
        )


def _answer(demands: Iterable[Demand]) -> None:
    for demand in demands:
        if not demand.is_answered.done():
            demand.is_answered.set_result(None)
