"""A parser, a transform or a route that hangs in a real server: its request fails, or the server
ends and names it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.api.test_parser_failures import CHAT, HEADER, PARSER
from tests.server_process import running_server

NATIVE = """import ctypes
        lock, libc = (ctypes.c_char * 64)(), ctypes.CDLL(None)
        libc.pthread_mutex_init(lock, None)
        libc.pthread_mutex_lock(lock), libc.pthread_mutex_lock(lock)"""


TRANSFORM = """
class Odd:
    def begin(self, texts, options):
        {act}

@hookimpl
def register(registry):
    registry.offer(kinds.TRANSFORM, "odd", Odd)
"""


ROUTE = """
import asyncio
from tokenmill.plugin import Route

class Odd:
    async def hang(self, call, body):
        await asyncio.sleep(0)
        {act}

    @property
    def routes(self):
        return [Route(path="/odd", handle=self.hang)]

    def error(self, status, message):
        return [message]

@hookimpl
def register(registry):
    registry.offer(kinds.ROUTE, "odd", Odd)
"""


def install(folder: Path, act: str, code: str = PARSER) -> None:
    (folder / "odd.py").write_text(HEADER + code.format(act=act))
    info = folder / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tokenmill.plugins]\nodd = odd\n")
    chosen = '[tool_call_parser]\nuse = "odd"\n' if code is PARSER else ""
    (folder / "plugins.toml").write_text(f'[plugins]\nenable = ["odd"]\n{chosen}')


def test_python_code_that_hangs_is_interrupted_and_the_server_goes_on(tmp_path: Path) -> None:
    install(tmp_path, "import time; time.sleep(3600)")
    flags = ("--plugins-file", str(tmp_path / "plugins.toml"))
    with running_server(tmp_path, *flags, packages=tmp_path) as server:
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=120)
        assert answer.status_code == 500 and "'odd'" in answer.json()["error"]["message"]
        assert httpx.get(f"{server.url}/ready", timeout=60).status_code == 200
        assert "tool_call_parser.parse" in server.log.read_text()


def test_a_transform_that_hangs_is_interrupted_and_the_server_goes_on(tmp_path: Path) -> None:
    install(tmp_path, "import time; time.sleep(3600)", TRANSFORM)
    flags = ("--plugins-file", str(tmp_path / "plugins.toml"))
    with running_server(tmp_path, *flags, packages=tmp_path) as server:
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=120)
        assert answer.status_code == 500 and "'odd'" in answer.json()["error"]["message"]
        assert httpx.get(f"{server.url}/ready", timeout=60).status_code == 200


def test_a_route_that_hangs_is_interrupted_and_the_server_goes_on(tmp_path: Path) -> None:
    install(tmp_path, "while True: pass", ROUTE)
    flags = ("--plugins-file", str(tmp_path / "plugins.toml"))
    with running_server(tmp_path, *flags, packages=tmp_path) as server:
        answer = httpx.get(f"{server.url}/odd", timeout=120)
        assert answer.status_code == 500 and "'odd'" in answer.json()[0]
        assert httpx.post(f"{server.url}/v1/chat/completions", json=CHAT).status_code == 200
        found = httpx.get(f"{server.url}/plugins").json()["plugins"]
        assert [one["failures"] for one in found if one["name"] == "odd"] == [1]


def test_native_code_that_hangs_ends_the_server_and_is_named(tmp_path: Path) -> None:
    install(tmp_path, NATIVE)
    flags = ("--plugins-file", str(tmp_path / "plugins.toml"))
    with running_server(tmp_path, *flags, packages=tmp_path) as server:
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=120)
        assert server.process.wait(60) == 1
        [line] = [x for x in server.log.read_text().splitlines() if "server_ends" in x]
        assert "odd" in line and "tool_call_parser.parse" in line
