"""After SIGTERM, routes of plugins that ask no engine have as much time as all others."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.core.plugin_packages import Packages
from tests.server_process import RunningServer, running_server
from tokenmill.api.stopping import LAST_WORDS

from .serving import PATIENCE

HEADER = """
import asyncio, pathlib
from tokenmill.plugin import Route, RouteAnswer, RouteStream, hookimpl, kinds
TOKENMILL_API = (1, 1)
"""
CODE = """
async def whole(call, body):
    await opened()
    return RouteAnswer(body="done")

async def streamed(call, body):
    return RouteStream(pieces=pieces(), media_type="text/plain")

async def flooding(call, body):
    return RouteStream(pieces=flood(), media_type="text/plain")

async def opened():
    pathlib.Path("begun").touch()
    while not pathlib.Path("gate").exists():
        await asyncio.sleep(0.01)

async def pieces():
    yield b"first "
    await opened()
    yield b"done"

async def flood():
    pathlib.Path("begun").touch()
    while True:
        yield bytes(1 << 20)

class Slow:
    routes = [Route(path="/" + f.__name__, handle=f) for f in (whole, streamed, flooding)]

    def error(self, status, message):
        return message

@hookimpl
def register(registry):
    registry.offer(kinds.ROUTE, "slow", Slow)
"""


@contextmanager
def slow_server(folder: Path, packages: Packages, timeout: float) -> Iterator[RunningServer]:
    packages.install("slow", CODE, header=HEADER)
    flags = ("--no-engine-process", "--route", "slow", "--shutdown-timeout", str(timeout))
    program = ("tests.api.toy_serve",)
    root = Path(__file__).parents[2]
    with running_server(
        folder, *flags, packages=Path(f"{packages.folder}:{root}"), program=program
    ) as server:
        yield server


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def stop(server: RunningServer) -> None:
    wait_for(Path("begun").exists)
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "draining" in server.log.read_text())


@pytest.mark.parametrize(("path", "text"), [("/whole", '"done"'), ("/streamed", "first done")])
def test_an_accepted_call_may_finish(
    packages: Packages, tmp_path: Path, path: str, text: str
) -> None:
    with slow_server(tmp_path, packages, 600) as server, ThreadPoolExecutor() as pool:
        asking = pool.submit(httpx.get, server.url + path, timeout=PATIENCE, trust_env=False)
        stop(server)
        time.sleep(2 * LAST_WORDS)
        Path("gate").touch()
        assert asking.result().text == text
        assert server.process.wait(PATIENCE) == 0
        assert "Traceback" not in server.log.read_text()


def test_a_call_that_takes_too_long_gets_an_error_and_leaves_no_traceback(
    packages: Packages, tmp_path: Path
) -> None:
    with slow_server(tmp_path, packages, 0.1) as server, ThreadPoolExecutor() as pool:
        url = server.url + "/whole"
        asking = pool.submit(httpx.get, url, timeout=PATIENCE, trust_env=False)
        stop(server)
        cut = asking.result()
        assert cut.status_code == 503 and cut.json()["error"]["code"] == "stopped"
        assert server.process.wait(PATIENCE) == 0
        log = server.log.read_text()
        assert "the server stopped" in log and "Traceback" not in log


def test_a_client_that_reads_nothing_does_not_hold_up_the_end(
    packages: Packages, tmp_path: Path
) -> None:
    with slow_server(tmp_path, packages, 600) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"GET /flooding HTTP/1.1\r\nHost: localhost\r\n\r\n")
            stop(server)
            assert server.process.wait(PATIENCE) == 0
        log = server.log.read_text()
        assert "the server stopped" in log and "Traceback" not in log
