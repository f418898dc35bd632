"""The client of Valkey or Redis. Every call has a time limit, and every failure is a StoreError."""

import asyncio
import json
from collections.abc import Awaitable, Sequence
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tokenmill.plugin import ConfigError

from .account import Account, Message
from .amounts import Amount
from .options import KeyLimits

T = TypeVar("T")
SCRIPT = files(__package__).joinpath("exchange.lua").read_text()


class StoreError(Exception):
    """The store does not answer, or answers an error."""


class Store:
    """One store. Its connections belong to the event loop in which it is used first."""

    def __init__(self, url: str, *, seconds: float, prefix: str) -> None:
        """`seconds`: the limit of each call. `prefix`: the beginning of names in the store.

        Raises ConfigError, without the URL, for one that is not valid.
        """
        from valkey.asyncio import Valkey

        options = {"ssl_check_hostname": True} if _has_tls(url) else {}
        try:
            self._client = Valkey.from_url(
                url,
                socket_timeout=seconds,
                socket_connect_timeout=seconds,
                **options,
            )
            parts = urlsplit(url)
            self.address = parts.path if parts.scheme == "unix" else str(parts.hostname)
            self.address += f":{parts.port}" if parts.port else ""
        except ValueError:
            raise ConfigError(
                "the URL of the store is not valid: it is valkey://[user:password@]host[:port]"
                "[/number], with valkeys for TLS; special characters of a password are written as "
                "%40"
            ) from None  # the cause may have the password
        self._seconds = seconds
        self._prefix = prefix
        self._script = ""
        """The script's hash, once the store has it."""

    async def exchange(self, batch: Sequence[tuple[Account, Message]]) -> list[tuple[str, Amount]]:
        """Send messages, and return their answers: the granted demands, and the balance.

        After an error it tries once more, with a new connection: the messages are absolute. Raises
        StoreError.
        """
        try:
            return await self._exchange(batch)
        except StoreError:
            return await self._exchange(batch)

    async def probe(self) -> None:
        """Run the script once, with a bucket without limits, as the store may take no writes.

        Raises ConfigError if it refuses this user, StoreError if it does not answer.
        """
        from valkey.exceptions import AuthenticationError, NoPermissionError

        account = Account(
            name=f"{self._prefix}:probe", limits=KeyLimits(), burst=1.0, lease_seconds=1.0
        )
        try:
            await self.exchange([(account, account.message(0.0))])
        except StoreError as error:
            if isinstance(error.__cause__, AuthenticationError | NoPermissionError):
                raise ConfigError(f"the store at {self.address} refuses access: {error}") from None
            raise

    async def close(self) -> None:
        await self._client.aclose()

    async def _exchange(self, batch: Sequence[tuple[Account, Message]]) -> list[tuple[str, Amount]]:
        from valkey.exceptions import NoScriptError

        if not self._script:
            await self._load()
        found = await self._limited(self._send(batch))
        if any(isinstance(one, NoScriptError) for one in found):  # the store was restarted
            await self._load()
            found = await self._limited(self._send(batch))
        if failed := next((one for one in found if isinstance(one, Exception)), None):
            await self._disconnect()  # for example after READONLY, from what was the primary
            raise _store_error(failed) from failed
        return [_answer(one) for one in found]

    async def _send(self, batch: Sequence[tuple[Account, Message]]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for account, message in batch:
            pipeline.evalsha(self._script, 1, account.name, _json(account, message))
        found: list[Any] = await pipeline.execute(raise_on_error=False)
        return found

    async def _load(self) -> None:
        self._script = await self._limited(self._client.script_load(SCRIPT))

    async def _limited(self, call: Awaitable[T]) -> T:
        """The answer of a call. After any failure, the next call makes a new connection."""
        from valkey.exceptions import ValkeyError

        try:
            async with asyncio.timeout(self._seconds):
                return await call
        except (ValkeyError, OSError, TimeoutError) as error:
            await self._disconnect()
            raise _store_error(error) from error
        except asyncio.CancelledError:
            await self._disconnect()
            raise

    async def _disconnect(self) -> None:
        await self._client.connection_pool.disconnect()


def _json(account: Account, message: Message) -> str:
    """The argument of the script."""
    return json.dumps(
        {
            "record": account.record,
            "lease_ms": account.lease_seconds * 1000,
            "per_minute": account.limits.per_minute,
            "capacity": account.limits.capacity(account.burst),
            "taken": message.taken.as_list(),
            "held": message.held.as_list(),
            "known_taken": message.known_taken.as_list(),
            "known_held": message.known_held.as_list(),
            "demands": [
                (demand.price.as_list(), demand.returnable.as_list()) for demand in message.demands
            ],
        }
    )


def _has_tls(url: str) -> bool:
    return url.lower().startswith(("valkeys://", "rediss://"))


def _answer(found: Sequence[bytes]) -> tuple[str, Amount]:
    requests, tokens, slots = map(float, found[1].split())
    return found[0].decode(), Amount(requests=requests, tokens=tokens, slots=slots)


def _store_error(error: BaseException) -> StoreError:
    return StoreError(str(error) or "no answer in time")
