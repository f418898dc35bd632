"""`tokenmill serve` as a process with the real model: clients that leave, and hangs at SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import tokenmill

from .core.plugin_packages import Packages
from .server_process import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, "--num-gpu-blocks-override", "600") as running:
        yield running


def test_two_hundred_requests_with_random_aborts_leave_no_block_held(server: RunningServer) -> None:
    rng = random.Random(7)

    async def one(client: httpx.AsyncClient, patience: float | None) -> None:
        body = {
            "prompt": "word " * rng.randint(1, 60),
            "max_tokens": rng.randint(1, 12),
            "stream": rng.random() < 0.5,
        }
        reading = _read(client, f"{server.url}/v1/completions", body)
        if patience is None:
            await reading
            return
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reading, patience)
            raise TimeoutError  # it was faster than its client's patience

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=300, limits=limits) as client:
            patiences = [rng.choice([None, 0.01, 0.1, 0.5, 2.0]) for _ in range(200)]
            await asyncio.gather(*(one(client, p) for p in patiences))

    asyncio.run(all_of_them())
    assert server.wait_until_empty(60)["kv_cache_usage"] == 0


def test_the_process_that_tries_grammars_runs_before_the_first_one(server: RunningServer) -> None:
    def is_running() -> bool:
        children = psutil.Process(server.process.pid).children(recursive=True)
        return any("grammar.worker:main" in " ".join(child.cmdline()) for child in children)

    for _ in range(600):
        if is_running():
            return
        time.sleep(0.1)
    raise AssertionError("it does not run after a minute")


HANGING = """
import time

class Scheduler:
    @hookimpl
    def schedule(self, step):
        hang()

class Method:
    @hookimpl
    def propose(self, batch):
        hang()

def hang():
    while True:
        time.sleep(0.1)

@hookimpl
def register(registry):
    registry.offer(kinds.SCHEDULER, "hanging", Scheduler)
    registry.offer(kinds.SPECULATIVE_METHOD, "hanging", Method)
"""


IMPATIENT = """
from tokenmill.api import stopping

stopping.CLOSING_SECONDS = 0.5
"""
"""Code of a plugin that shortens a limit in its process, because the test waits for the limit."""


@pytest.mark.parametrize(
    ("hook", "flags"),
    [
        ("schedule", ("--scheduler", "hanging")),
        pytest.param(
            "propose",
            ("--speculative-method", "hanging", "--no-speculative-adaptive"),
            marks=pytest.mark.check,  # tests/core has each hook that hangs; this is a server more
        ),
    ],
)
def test_a_second_sigterm_ends_a_server_in_which_a_plugin_hangs(
    hook: str, flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    Packages(folder, monkeypatch).install("hanging", HANGING + IMPATIENT)
    blocks = ("--no-engine-process", "--num-gpu-blocks-override", "300")
    flags = (*blocks, "--hook-watchdog-seconds", "0.5", *flags)
    with running_server(tmp_path, *flags, packages=folder) as server:
        ask_in_background(server, prompt="one two one two one two", max_tokens=20)
        _wait_for(server, "hook_hangs")
        server.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert server.process.poll() is None
        for _ in range(4):  # on a busy machine two signals may arrive at once, and are one then
            server.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(20)
                break
        assert server.process.poll() == 128 + signal.SIGTERM
        [line] = [line for line in server.log.read_text().splitlines() if "hook_hangs" in line][:1]
    event = json.loads(line)
    assert (event["hook"], event["plugin"]) == (hook, "hanging")
    assert "hanging.py" in line and " hang" in line


HUNG_DEVICE = """
import threading
from tokenmill.backends.execution import in_process
from tokenmill.core.shell import engine_shell, local_engine

engine_shell.CLOSING_SECONDS = local_engine.CLOSING_SECONDS = 0.5  # the test waits for both

def hang(self, plan):
    threading.Event().wait()

in_process.ModelExecutor.run = hang

@hookimpl
def register(registry):
    pass
"""


def test_a_sigterm_ends_a_server_whose_device_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    packages = Packages(folder, monkeypatch)
    packages.install("hung_device", HUNG_DEVICE)
    defaults = (Path(tokenmill.__file__).parent / "plugins.toml").read_text()
    packages.write_settings(defaults.replace("enable = [", "enable = ['hung_device',", 1))
    flags = ("--no-engine-process", "--num-gpu-blocks-override", "300", "--shutdown-timeout", "0.5")
    with running_server(tmp_path, *flags, packages=folder) as server:
        ask_in_background(server, prompt="one two", max_tokens=20)
        while not server.load()["num_running"]:
            time.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 128 + signal.SIGTERM
    assert "killed" in server.log.read_text()


def ask_in_background(server: RunningServer, **body: Any) -> None:
    """Send a request that gets no answer. Its client stays, so a busy machine changes nothing."""

    def ask() -> None:
        with contextlib.suppress(httpx.TransportError):
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=600)

    threading.Thread(target=ask, daemon=True).start()


def _wait_for(server: RunningServer, event: str) -> None:
    for _ in range(600):
        if event in server.log.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(server.log.read_text())


async def _read(client: httpx.AsyncClient, url: str, body: dict[str, object]) -> None:
    async with client.stream("POST", url, json=body) as reply:
        async for _ in reply.aiter_bytes():
            pass


MAX_SERVER_MB = 90
"""Resident memory of the server's process while the engine has one of its own. It is 79 MB with the
default model's tokenizer; the rest is for other versions of libraries. torch alone takes 150 MB."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_server_of_an_engine_process_is_small_and_takes_the_engine_along(
    tmp_path: Path,
) -> None:
    with running_server(tmp_path, "--num-gpu-blocks-override", "300") as server:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
        assert answer.json()["usage"]["completion_tokens"] > 0
        folder = Path("/proc", str(server.process.pid))
        [engine] = (folder / f"task/{server.process.pid}/children").read_text().split()
        assert "libtorch" in Path("/proc", engine, "maps").read_text()
        assert "torch" not in (folder / "maps").read_text()
        assert "numpy" not in (folder / "maps").read_text()
        resident = int(re.findall(r"VmRSS:\s+(\d+) kB", (folder / "status").read_text())[0])
        assert resident < MAX_SERVER_MB << 10
        server.process.kill()
        for _ in range(300):
            if not Path("/proc", engine).exists():
                return
            time.sleep(0.1)
        raise AssertionError("the engine outlives its server")


def test_a_second_sigterm_ends_a_server_whose_engine_process_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    Packages(folder, monkeypatch).install("hanging", HANGING)
    flags = ("--num-gpu-blocks-override", "300", "--hook-watchdog-seconds", "0.5")
    flags += ("--stall-timeout", "600", "--scheduler", "hanging")
    with running_server(tmp_path, *flags, packages=folder) as server:
        body = {"prompt": "one two", "max_tokens": 20}
        answers: list[httpx.Response] = []

        def ask() -> None:
            answers.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=120))

        asking = threading.Thread(target=ask)
        asking.start()
        _wait_for(server, "hook_hangs")
        server.process.send_signal(signal.SIGTERM)
        _wait_for(server, "draining")
        assert server.process.poll() is None, "the request is still open"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        asking.join()
    assert [answer.status_code for answer in answers] == [503]
