"""A store that is away, comes back, or refuses access."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from limits_store import StoreProcess, find_program, running_store
from servers import Server, new_server, quota, running, until

from tokenmill.plugin import ConfigError


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def is_lost(server: Server) -> bool:
    return server.plugin._exchange.is_lost


async def until_back(server: Server) -> None:
    async def is_back() -> bool:
        return not is_lost(server)

    await until(is_back)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.msg for record in caplog.records if record.msg.startswith("limits_")]


@pytest.mark.parametrize("fault", ["kill", "pause"])
@pytest.mark.parametrize("mode", ["open", "closed"])
def test_without_a_store_requests_are_admitted_or_refused(
    store: StoreProcess, mode: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        limits = {"requests_per_minute": quota(5), "store_timeout": 0.2}
        async with running(1, url=store.url, on_store_lost=mode, **limits) as [server]:
            assert await server.send() is None
            assert server.metric("store_up") == 1
            store.kill() if fault == "kill" else store.pause()
            answers = await asyncio.gather(*(server.send() for _ in range(20)))
            answers += [await server.send() for _ in range(20)]
            assert server.metric("store_up") == 0
            if mode == "open":
                assert answers == [None] * 40
                assert server.metric("unlimited_total") == 40
            else:
                assert all(one is not None and not one.is_rate_limit for one in answers)
                assert server.metric('refused_total{limit="store"}') == 40
            assert lines(caplog) == ["limits_store_lost"]
            store.start() if fault == "kill" else store.go_on()
            await until_back(server)
            assert lines(caplog) == ["limits_store_lost", "limits_store_back"]
            left = 5 if fault == "kill" else 4  # a store without its data begins with full buckets
            answers = [await server.send() for _ in range(10)]
            assert answers[:left] == [None] * left and None not in answers[left:]

    run(check())


def test_no_request_waits_for_a_store_that_is_known_to_be_lost(store: StoreProcess) -> None:
    async def check() -> None:
        options = {"url": store.url, "requests_per_minute": quota(5), "store_timeout": 0.2}
        async with running(1, **options) as [server]:
            store.pause()
            await server.send()
            assert is_lost(server) and server.num_waits == 1
            assert [await server.send() for _ in range(100)] == [None] * 100
            assert server.num_waits == 1
            store.go_on()

    run(check())


def test_a_store_that_lost_its_data_still_counts_what_servers_hold(store: StoreProcess) -> None:
    async def check() -> None:
        limits = {"tokens_per_minute": quota(100), "max_concurrent_requests": 2}
        options = {"url": store.url, "lease_seconds": 0.6, "store_timeout": 0.2, **limits}
        async with running(2, **options) as servers:
            for server in servers:
                assert await server.send(0, 30) is None
            store.kill()
            store.start()

            async def have_renewed() -> bool:
                return all(one.metric("store_seconds_count") > 4 for one in servers)

            await until(have_renewed)
            assert not any(map(is_lost, servers))
            refusal = await servers[0].send(0, 0)
            assert refusal is not None and "concurrent" in refusal.reason
            servers[1].finish(30)

            async def is_admitted() -> bool:
                return await servers[0].send(0, 40) is None

            await until(is_admitted)
            assert await servers[1].send(1, 0) is not None

    run(check())


def test_a_server_that_stops_returns_what_it_holds(store: StoreProcess) -> None:
    async def check() -> None:
        options = {"url": store.url, "tokens_per_minute": quota(100), "lease_seconds": 3600}
        async with running(1, **options) as [other]:
            async with running(1, **options) as [server]:
                assert await server.send(0, 100) is None
                assert await other.send(1, 0) is not None
                server.finish(0)
            assert await other.send(100, 0) is None

    run(check())


def test_a_server_starts_while_the_store_is_away(
    store: StoreProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        store.kill()
        async with running(1, url=store.url, requests_per_minute=quota(1)) as [server]:
            assert await server.send() is None
            assert await server.send() is None
            store.start()
            await until_back(server)
            assert await server.send() is None
            assert await server.send() is not None

    run(check())
    assert lines(caplog) == ["limits_store_lost", "limits_store_back"]


PASSWORD = "pass/w0rd"
QUOTED = "pass%2Fw0rd"


@pytest.fixture
def guarded(tmp_path: Any) -> Any:
    program = find_program()
    if program is None:
        pytest.skip("neither valkey-server nor redis-server is installed")
    with running_store(program, tmp_path, "--requirepass", PASSWORD) as store:
        yield store


def test_the_password_is_used_and_never_shown(
    guarded: StoreProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        url = f"valkey://:{QUOTED}@127.0.0.1:{guarded.port}"
        options = {"url": url, "requests_per_minute": quota(1), "store_timeout": 0.2}
        async with running(1, **options) as [server]:
            assert await server.send() is None
            assert await server.send() is not None
            assert PASSWORD not in repr(server.plugin._options)
            guarded.kill()
            assert await server.send() is None

    run(check())
    assert lines(caplog) == ["limits_store_lost"]
    shown = [str(vars(record)) for record in caplog.records]
    assert not any(secret in line for line in shown for secret in (PASSWORD, QUOTED))


@pytest.mark.parametrize("user", ["", ":wrong@"])
def test_a_server_does_not_start_if_the_store_refuses_access(
    guarded: StoreProcess, user: str
) -> None:
    async def check() -> None:
        url = f"valkey://{user}127.0.0.1:{guarded.port}"
        with pytest.raises(ConfigError, match=r"the store at 127.0.0.1:\d+ refuses access") as got:
            async with running(1, url=url, requests_per_minute=1):
                pass
        assert "wrong" not in str(got.value)

    run(check())


@pytest.mark.parametrize("url", [f"valkey://:{PASSWORD}@host", f"http://:{PASSWORD}@host", "host"])
def test_an_url_that_is_not_valid_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="the URL of the store is not valid") as got:
        new_server(url=url)
    assert "w0rd" not in str(got.value) and got.value.__cause__ is None


def test_the_store_gets_no_names_of_keys(store: StoreProcess) -> None:
    from valkey import Valkey

    async def check() -> None:
        options = {"url": store.url, "requests_per_minute": quota(9), "prefix": "mine"}
        async with running(1, **options) as [server]:
            assert await server.send(key="acme-search") is None

    run(check())
    with Valkey.from_url(store.url) as client:
        [name] = [name for name in client.scan_iter() if not name.endswith(b":probe")]
        content = client.hgetall(name)
        assert 0 < client.ttl(name) <= 180_001
    assert name.startswith(b"mine:") and b"acme" not in name + str(content).encode()
