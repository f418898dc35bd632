"""The admission: prices of requests, and what happens to them."""

import hashlib
import os
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

from tokenmill.plugin import (
    Admitted,
    Arrival,
    EngineClient,
    Finished,
    FinishedRequest,
    Load,
    PluginContext,
    Refusal,
    RequestOptions,
    RequestView,
    get_logger,
    hookimpl,
)

from .account import Account
from .exchange import Exchange
from .options import KeyLimits, SharedLimitsOptions
from .store import Store

URL_VARIABLE = "TOKENMILL_SHARED_LIMITS_URL"
SECRET_VARIABLE = "TOKENMILL_API_KEY_SECRET"
DEFAULT_URL = "valkey://127.0.0.1:6379"
STORE_RETRY_SECONDS = 1.0
HASHED_KEY = re.compile("[0-9a-f]{16}")
"""The id of an API key that has no name."""

_log = get_logger("shared_limits")


@dataclass(slots=True)
class LivePrompt:
    """A prompt that was paid, and the number of its choices that have not ended."""

    account: Account
    num_choices: int


class SharedLimits:
    """Limits per API key for all servers together.

    `before_admit` gets a lease of the request's price from the store, `admit` looks whether there
    is one, `on_admitted` spends it, and `on_finished` frees what was not used.
    """

    def __init__(self, context: PluginContext, options: SharedLimitsOptions) -> None:
        self._options = options
        self._others = options.limits_of_others()
        self._has_limits = any(one.has_any for one in (self._others, *options.keys.values()))
        url = options.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        store = Store(url, seconds=options.store_timeout, prefix=options.prefix)
        lost = "admitted without limits" if options.on_store_lost == "open" else "refused"
        self._exchange = Exchange(store, context, when_lost=lost)
        self._live: dict[tuple[str, int], LivePrompt] = {}
        """By request id and index of the prompt."""
        self._is_warned = SECRET_VARIABLE in os.environ
        metrics = context.metrics
        self._refused = metrics.counter("refused", "Refused requests by their limit.", ["limit"])
        self._unlimited = metrics.counter(
            "unlimited", "Requests that were admitted while the store was lost."
        )

    @hookimpl
    @asynccontextmanager
    async def lifespan(self, engine: EngineClient) -> AsyncIterator[None]:
        if not self._has_limits:
            yield
            return
        await self._exchange.start()
        try:
            yield
        finally:
            await self._exchange.close()

    @hookimpl
    def before_admit(self, arrival: Arrival) -> Awaitable[None] | None:
        """Get a lease, unless there is one, for example from a request that has just ended."""
        limits = self._limits_of(arrival.options)
        if limits is None or self._exchange.is_lost:
            return None
        account = self._account(arrival.options, limits)
        is_first = arrival.options.request_id not in account.live
        slots = int(arrival.options.prompt_index == 0 or is_first)
        answers = arrival.n * arrival.max_tokens
        price = limits.price(
            requests=1, tokens=len(arrival.prompt_token_ids) + answers, slots=slots
        )
        if account.promise(price, monotonic()):
            return None
        returnable = limits.price(requests=0, tokens=answers, slots=slots)
        return self._exchange.ask(account, price, returnable)

    @hookimpl
    def admit(self, request: RequestView, load: Load) -> Refusal | None:
        """Check the price of a choice together with the choices before it."""
        limits = self._limits_of(request.options)
        if limits is None:
            return None
        account = self._account(request.options, limits)
        price = limits.price(
            requests=1,
            tokens=request.num_prompt_tokens + (request.choice_index + 1) * request.max_tokens,
            slots=int(request.request_id not in account.live),
        )
        now = monotonic()
        if account.covers(price, now):
            return None
        if self._exchange.is_lost or account.balance is None:
            return self._answer_without_store(request)
        return self._refuse(*account.refusal(price, now))

    @hookimpl
    def on_admitted(self, event: Admitted) -> None:
        limits = self._limits_of(event.options)
        if limits is None:
            return
        account = self._account(event.options, limits)
        is_first = event.request_id not in account.live
        answers = event.n * event.max_tokens
        price = limits.price(
            requests=1, tokens=event.num_prompt_tokens + answers, slots=int(is_first)
        )
        if not account.covers(price, monotonic()):
            return  # the store is lost: a request that paid nothing gives nothing back
        account.pay(price, limits.price(requests=0, tokens=answers, slots=int(is_first)))
        account.live[event.request_id] += event.n
        self._live[event.request_id, event.options.prompt_index] = LivePrompt(account, event.n)

    @hookimpl
    def on_finished(self, event: Finished) -> None:
        for request in event.requests:
            self._settle(request)

    def _settle(self, request: FinishedRequest) -> None:
        place = request.request_id, request.options.prompt_index
        prompt = self._live.get(place)
        if prompt is None:
            return
        prompt.num_choices -= 1
        if not prompt.num_choices:
            del self._live[place]
        account = prompt.account
        account.live[request.request_id] -= 1
        is_last = not account.live[request.request_id]
        if is_last:
            del account.live[request.request_id]
        unused = request.max_tokens - request.num_generation_tokens
        price = account.limits.price
        account.settle(
            price(requests=0, tokens=request.max_tokens, slots=int(is_last)),
            price(requests=0, tokens=unused, slots=int(is_last)),
        )
        self._exchange.wake()

    def _limits_of(self, sender: RequestOptions) -> KeyLimits | None:
        """The limits of a key; None: it has none here."""
        if not self._exchange.is_running:  # in a simulation there are no other servers
            return None
        limits = self._options.keys.get(sender.api_key_id or "")
        if limits is None:
            if sender.has_key_limits:
                return None  # the server applies the limits of the key file
            limits = self._others
        return limits if limits.has_any else None

    def _account(self, sender: RequestOptions, limits: KeyLimits) -> Account:
        key = sender.api_key_id
        digest = hashlib.sha256(("" if key is None else f"key {key}").encode()).hexdigest()
        name = f"{self._options.prefix}:{digest[:40]}"
        account = self._exchange.find(name)
        if account is None:
            account = Account(
                name=name,
                limits=limits,
                burst=self._options.burst,
                lease_seconds=self._options.lease_seconds,
            )
            self._exchange.add(account)
            self._warn_of_secret(key)
        return account

    def _warn_of_secret(self, key: str | None) -> None:
        if not self._is_warned and HASHED_KEY.fullmatch(key or ""):
            self._is_warned = True
            _log.warning(
                "keys_not_shared",
                reason=f"without {SECRET_VARIABLE}, each server has other ids of API keys, and "
                "quotas of its own",
            )

    def _answer_without_store(self, request: RequestView) -> Refusal | None:
        if self._options.on_store_lost == "open":
            if request.choice_index == 0:
                self._unlimited.inc()
            return None
        return self._refuse(
            "store",
            Refusal(
                reason="the limits of this API key cannot be checked at the moment; try again",
                retry_after=STORE_RETRY_SECONDS,
            ),
        )

    def _refuse(self, limit: str, refusal: Refusal) -> Refusal:
        self._refused.labels(limit).inc()
        return refusal
