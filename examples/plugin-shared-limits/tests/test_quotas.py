"""Several servers share one quota, in a real store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from limits_store import StoreProcess
from servers import Server, new_call, quota, running, until
from tokenmill_shared_limits.store import Store, StoreError

from tokenmill.plugin import Refusal

LEASE = 0.5


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def until_admitted(server: Server, *price: int, **options: Any) -> None:
    """Send a call again and again until it is admitted."""

    async def is_admitted() -> bool:
        return await server.send(*price, **options) is None

    await until(is_admitted)


async def until_told(server: Server) -> None:
    """Wait until the store knows what has ended."""
    count = server.metric("store_seconds_count")

    async def is_told() -> bool:
        return server.metric("store_seconds_count") > count

    await until(is_told)


async def spend_all(servers: list[Server], prompt: int = 1, max_tokens: int = 0) -> int:
    """Send calls to all servers at once until each refuses; returns the number of the admitted."""

    async def spend(server: Server) -> int:
        count = 0
        while await server.send(prompt, max_tokens) is None:
            count += 1
        return count

    return sum(await asyncio.gather(*map(spend, servers)))


def test_servers_admit_exactly_the_requests_of_one_quota(store: StoreProcess) -> None:
    async def check() -> None:
        async with running(3, url=store.url, requests_per_minute=quota(100)) as servers:
            answers = await asyncio.gather(*(servers[i % 3].send() for i in range(300)))
            assert answers.count(None) == 100
            [refusal] = {answer.reason for answer in answers[-1:] if answer is not None}
            assert "this API key is limited to 0.0333333 requests per minute; try again in" in (
                refusal
            )
            counts = [one.metric('refused_total{limit="requests"}') for one in servers]
            assert sum(counts) == 200

    run(check())


def test_servers_admit_exactly_the_tokens_of_one_quota(store: StoreProcess) -> None:
    async def check() -> None:
        async with running(3, url=store.url, tokens_per_minute=quota(1000)) as servers:
            assert await spend_all(servers, 3, 4) == 1000 // 7
            assert await spend_all(servers, 1, 0) == 1000 % 7

    run(check())


def test_a_refusal_says_when_the_price_will_be_there(store: StoreProcess) -> None:
    async def check() -> None:
        async with running(2, url=store.url, tokens_per_minute=60, burst=60) as (first, second):
            assert await first.send(20, 30) is None
            refusal = await second.send(10, 10)
            assert isinstance(refusal, Refusal) and refusal.is_rate_limit
            assert 8 < refusal.retry_after <= 10

    run(check())


def test_a_price_above_the_whole_quota_needs_a_full_bucket_and_leaves_a_debt(
    store: StoreProcess,
) -> None:
    async def check() -> None:
        async with running(2, url=store.url, tokens_per_minute=quota(100)) as (first, second):
            assert await first.send(150, 50) is None
            assert await second.send(1, 0) is not None
            first.finish(50)
            assert await second.send(1, 0) is not None

    run(check())


def test_tokens_that_were_not_generated_can_be_spent_by_another_server(
    store: StoreProcess,
) -> None:
    async def check() -> None:
        async with running(2, url=store.url, tokens_per_minute=quota(100)) as (first, second):
            assert await first.send(10, 45, n=2) is None
            assert await second.send(10, 30) is not None
            first.finish(30)
            await until_admitted(second, 10, 20)
            assert await second.send(1, 0) is not None, "10 + 2 * 30 + 10 + 20"

    run(check())


def test_concurrent_calls_count_on_all_servers_together(store: StoreProcess) -> None:
    async def check() -> None:
        async with running(2, url=store.url, max_concurrent_requests=3) as (first, second):
            assert await first.send() is None
            assert await first.send(request_id="two prompts") is None
            assert await first.send(request_id="two prompts", prompt_index=1) is None
            assert await second.send(n=2) is None
            refusal = await second.send()
            assert refusal is not None and "limited to 3 concurrent requests" in refusal.reason
            first.finish()
            await until_admitted(second)
            first.finish()
            assert await first.send() is not None, "its other prompt is live"
            first.finish()
            await until_admitted(first)

    run(check())


def test_keys_and_deployments_have_quotas_of_their_own(store: StoreProcess) -> None:
    async def check() -> None:
        named = {"batch": {"requests_per_minute": quota(2)}, "free": {}}
        options = {"url": store.url, "requests_per_minute": quota(1), "keys": convert(named)}
        async with running(2, **options) as servers, running(1, prefix="b", **options) as [other]:
            assert await servers[0].send(key="one") is None
            assert await servers[1].send(key="one") is not None
            assert await servers[1].send(key="two") is None
            assert await other.send(key="one") is None
            answers = [await one.send(key="batch", has_key_limits=True) for one in servers * 2]
            assert answers[:2] == [None, None] and None not in answers[2:]
            assert [await one.send(key="free") for one in servers * 3] == [None] * 6
            in_the_file = [await one.send(key="named", has_key_limits=True) for one in servers * 3]
            assert in_the_file == [None] * 6

    run(check())


def convert(named: dict[str, Any]) -> Any:
    """As plugins.toml gives them."""
    import msgspec
    from tokenmill_shared_limits.options import KeyLimits

    return msgspec.convert(named, dict[str, KeyLimits])


def test_a_lease_that_no_request_used_goes_back(store: StoreProcess) -> None:
    """The sender left while the store was asked, or another admission refused the request."""

    async def check() -> None:
        async with running(2, url=store.url, requests_per_minute=quota(2)) as (first, second):
            await first.prepare(new_call())
            asking = asyncio.ensure_future(first.prepare(new_call()))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            await until_admitted(second)
            await until_admitted(second)
            assert await second.send() is not None

    run(check())


def test_what_a_killed_server_could_give_back_comes_back_and_nothing_else(
    store: StoreProcess,
) -> None:
    async def check() -> None:
        limits = {"tokens_per_minute": quota(100), "max_concurrent_requests": 2}
        options = {"url": store.url, "lease_seconds": LEASE, **limits}
        async with running(2, **options) as (first, second):
            assert await first.send(30, 40) is None
            assert await first.send(10, 20) is None
            first.finish(40)
            await until_told(first)
            assert await first.send(0, 0) is None
            refusal = await second.send(0, 0)
            assert refusal is not None and "concurrent" in refusal.reason
            await first.die()
            await until_admitted(second, 10, 10)
            assert await second.send(1, 0) is not None, "10 + 30 + 40 were spent"
            assert await second.send(0, 0) is None

    run(check())


def test_a_server_that_was_cut_off_does_not_spend_what_others_got(store: StoreProcess) -> None:
    async def check() -> None:
        options = {"url": store.url, "lease_seconds": LEASE, "tokens_per_minute": quota(100)}
        async with running(2, **options) as (first, second):
            assert await first.send(0, 60) is None
            await first.die()
            await until_admitted(second, 0, 100)
            first.finish(0)  # its 60 tokens belong to others now
            assert first.queue(new_call(0, 60)) is not None
            second.finish(0)
            first.plugin._exchange._task = None
            await first.plugin._exchange.start()
            await until_admitted(first, 0, 100)
            assert await second.send(1, 0) is not None

    run(check())


def test_an_answer_that_was_lost_charges_nothing_twice(
    store: StoreProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([True, False, True, True, False, True])
    send = Store._send

    async def lossy(self: Store, batch: Any) -> Any:
        found = await send(self, batch)
        if batch and next(losses, False):
            await self._disconnect()
            raise StoreError("planted: the answer is lost")
        return found

    async def check() -> None:
        async with running(2, url=store.url, tokens_per_minute=quota(100)) as (first, second):
            monkeypatch.setattr(Store, "_send", lossy)
            assert await first.send(10, 20) is None, "asked twice"
            assert await first.send(10, 20) is None, "twice lost: without limits"
            assert first.plugin._exchange.is_lost
            first.finish(20)
            first.finish(20)
            await until_admitted(second, 0, 70)
            assert await second.send(1, 0) is not None

    run(check())


@pytest.mark.parametrize("seed", range(3))
def test_whatever_servers_do_they_never_have_more_than_the_quota(
    store: StoreProcess, seed: int
) -> None:
    """Random calls at once on three servers, two of which die; at the end all of it comes back."""
    capacity, slots = 500, 6
    rng = random.Random(seed)

    async def check() -> None:
        limits = {"tokens_per_minute": quota(capacity), "max_concurrent_requests": slots}
        async with running(4, url=store.url, lease_seconds=LEASE, **limits) as servers:
            spent, last = 0, servers[-1]

            async def act(server: Server) -> None:
                nonlocal spent
                if server.live and rng.random() < 0.5:
                    call = server.live[0]
                    generated = rng.randint(0, call.max_tokens)
                    spent += call.num_prompt_tokens + generated * call.n
                    server.finish(generated)
                else:
                    price = rng.randint(1, 4), rng.randint(0, 60)
                    await server.send(*price, n=rng.randint(1, 3))
                live = [call for one in servers for call in one.live]
                reserved = sum(c.num_prompt_tokens + c.n * c.max_tokens for c in live)
                assert spent + reserved <= capacity
                assert len(live) <= slots

            for turn in range(60):
                await asyncio.gather(*(act(rng.choice(servers)) for _ in range(4)))
                if turn in (20, 40):
                    lost = servers.pop(0)
                    spent += sum(call.num_prompt_tokens for call in lost.live)
                    await lost.die()
            for server in servers:
                while server.live:
                    spent += server.live[0].num_prompt_tokens
                    server.finish(0)
            while spent < capacity:
                await until_admitted(last, 1, 0)
                last.finish(0)
                spent += 1
            assert await last.send(1, 0) is not None

    run(check())


@pytest.mark.parametrize(
    ("key", "secret", "count"),
    [("9f86d081884c7d65", "", 1), ("9f86d081884c7d65", "shared", 0), ("named", "", 0)],
)
def test_a_server_says_that_ids_of_keys_differ_between_servers(
    store: StoreProcess,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    key: str,
    secret: str,
    count: int,
) -> None:
    monkeypatch.delenv("TOKENMILL_API_KEY_SECRET", raising=False)
    if secret:
        monkeypatch.setenv("TOKENMILL_API_KEY_SECRET", secret)

    async def check() -> None:
        async with running(1, url=store.url, requests_per_minute=quota(9)) as [server]:
            assert [await server.send(key=key), await server.send(key=key)] == [None, None]

    run(check())
    assert [record.msg for record in caplog.records].count("keys_not_shared") == count


def test_a_prompt_that_a_killed_server_had_just_admitted_stays_spent(store: StoreProcess) -> None:
    async def check() -> None:
        limits = {"tokens_per_minute": quota(100), "requests_per_minute": quota(3)}
        async with running(2, url=store.url, lease_seconds=LEASE, **limits) as (first, second):
            assert await first.send(30, 40) is None
            await first.die()
            await until_admitted(second, 0, 70)
            second.finish(0)
            await until_admitted(second, 0, 70)
            assert await second.send(0, 0) is not None, "three requests"

    run(check())


def test_a_lease_is_kept_while_another_plugin_makes_its_request_wait(store: StoreProcess) -> None:
    async def check() -> None:
        async with running(2, url=store.url, requests_per_minute=quota(2)) as (first, second):
            waiting = new_call()
            await first.prepare(waiting)
            assert await first.send() is None
            assert await second.send() is not None
            assert first.queue(waiting) is None

    run(check())


def test_limits_that_were_changed_hold_at_once(store: StoreProcess) -> None:
    async def check() -> None:
        old = {"tokens_per_minute": quota(100), "max_concurrent_requests": 5}
        new = {"tokens_per_minute": quota(10), "max_concurrent_requests": 20}
        async with (
            running(1, url=store.url, **old) as before,
            running(2, url=store.url, **new) as after,
        ):
            assert [await before[0].send(1, 0) for _ in range(3)] == [None] * 3
            assert await spend_all(after) == 10
            refusal = await after[0].send(0, 0)
            assert refusal is None, "13 of 20 calls are live"

    run(check())
