"""Servers share the quotas of API keys with examples/plugin-shared-limits and a real store."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server_process import RunningServer, running_server

from .parts import need

PACKAGE = Path(__file__).resolve().parents[2] / "examples/plugin-shared-limits"
PROGRAM = ("tests.api.toy_serve",)
PATIENCE = 60.0
QUOTA = 30
LONG = 4000
"""Tokens of a call that still runs when its server is killed."""
SENDER = {"Authorization": "Bearer secret-requests"}
MODES = ("closed", "open", "open")
SETTINGS = """
[plugins]
enable = ["shared-limits"]
[admission.shared-limits]
url = "{url}"
on_store_lost = "{mode}"
burst = 180_000.0 # 50 hours: in the test, nothing is refilled
store_timeout = 1.0
lease_seconds = 1.5
[admission.shared-limits.keys]
requests = {{ requests_per_minute = {per_minute} }}
concurrent = {{ max_concurrent_requests = 2 }}
lost = {{ requests_per_minute = {per_minute} }}
"""
KEYS = "".join(f'[{name}]\nkey = "secret-{name}"\n' for name in ("requests", "concurrent", "lost"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed example."""
    pytest.importorskip("valkey", reason="pip install valkey: the client of the store")
    target = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target")
    pip = [sys.executable, "-m", "pip", "install", *options, str(target), str(PACKAGE)]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The store of the example's own tests."""
    program = need("redis-server", "redis-server")
    sys.path.insert(0, str(PACKAGE / "tests"))
    try:
        module = importlib.import_module("limits_store")
    finally:
        sys.path.remove(str(PACKAGE / "tests"))
    with module.running_store(program, tmp_path_factory.mktemp("store")) as running:
        yield running


StartServer = Callable[[ExitStack, str], RunningServer]


@pytest.fixture(scope="module")
def start(site: Path, store: Any, tmp_path_factory: pytest.TempPathFactory) -> StartServer:
    """Starts a server without a model, which ends with the stack."""

    def start_one(stack: ExitStack, mode: str) -> RunningServer:
        folder = tmp_path_factory.mktemp("server")
        settings, keys = folder / "plugins.toml", folder / "keys.toml"
        text = SETTINGS.format(url=store.url, mode=mode, per_minute=QUOTA / 3000)
        settings.write_text(text)
        keys.write_text(KEYS)
        keys.chmod(0o600)
        flags = ("--plugins-file", str(settings), "--api-key-file", str(keys))
        room = ("--num-gpu-blocks-override", str(LONG))
        return stack.enter_context(
            running_server(folder, *flags, *room, packages=site, program=PROGRAM)
        )

    return start_one


@pytest.fixture(scope="module")
def servers(start: StartServer) -> Iterator[list[RunningServer]]:
    """Three servers; the first refuses requests while the store is away."""
    with ExitStack() as stack:
        yield [start(stack, mode) for mode in MODES]


def ask(server: RunningServer, key: str, max_tokens: int = 3) -> httpx.Response:
    return httpx.post(
        f"{server.url}/v1/completions",
        json={"prompt": "abc", "max_tokens": max_tokens, "ignore_eos": True},
        headers={"Authorization": f"Bearer secret-{key}"},
        timeout=PATIENCE,
        trust_env=False,
    )


def wait_until(is_reached: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_reached():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_three_servers_grant_exactly_one_quota(servers: list[RunningServer]) -> None:
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda i: ask(servers[i % 3], "requests"), range(QUOTA + 18)))
    assert Counter(answer.status_code for answer in answers) == {200: QUOTA, 429: 18}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert "this API key is limited to 0.01 requests per minute" in refused.text
    assert 5900 < float(refused.headers["Retry-After"]) <= 6000
    metrics = "".join(httpx.get(f"{s.url}/metrics", headers=SENDER).text for s in servers)
    name = 'tokenmill:shared_limits_refused_total{limit="requests"}'
    assert sum(map(float, re.findall(rf"^{re.escape(name)} (\S+)$", metrics, re.M))) >= 18


def test_the_leases_of_a_killed_server_come_back(
    servers: list[RunningServer], start: StartServer
) -> None:
    with ExitStack() as stack:
        lost = start(stack, "open")
        threads = stack.enter_context(ThreadPoolExecutor(2))
        held = [threads.submit(ask, lost, "concurrent", LONG) for _ in range(2)]
        wait_until(lambda: num_running(lost) == 2)
        refused = ask(servers[0], "concurrent")
        assert refused.status_code == 429
        assert "limited to 2 concurrent requests" in refused.text
        lost.process.kill()
        wait_until(lambda: ask(servers[0], "concurrent").status_code == 200)
        assert all(isinstance(one.exception(PATIENCE), httpx.HTTPError) for one in held)


def num_running(server: RunningServer) -> int:
    load = httpx.get(f"{server.url}/load", headers=SENDER).json()
    return int(load["num_running"])


def test_without_the_store_servers_admit_or_refuse_until_it_is_back(
    servers: list[RunningServer], store: Any
) -> None:
    store.kill()
    try:
        for server, mode in zip(servers, MODES, strict=True):
            answers = [ask(server, "lost") for _ in range(3)]
            wanted = 503 if mode == "closed" else 200
            assert [answer.status_code for answer in answers] == [wanted] * 3
            assert {a.headers.get("Retry-After") for a in answers} == {
                "1" if mode == "closed" else None
            }
    finally:
        store.start()
    for server in servers:
        wait_until(lambda server=server: "limits_store_back" in server.log.read_text())  # type: ignore[misc]
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda i: ask(servers[i % 3], "lost"), range(QUOTA + 6)))
    assert Counter(answer.status_code for answer in answers) == {200: QUOTA, 429: 6}
    for server in servers:
        text = server.log.read_text()
        assert text.count("limits_store_lost") == text.count("limits_store_back") == 1


def test_the_examples_own_tests_with_a_store_pass(site: Path, store: Any) -> None:
    options = ("-q", "-c", os.devnull, "-p", "no:cacheprovider", f"--rootdir={PACKAGE}", "-rs")
    modules = [str(PACKAGE / "tests" / f"test_{name}.py") for name in ("quotas", "lost_store")]
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *modules],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout, done.stdout
