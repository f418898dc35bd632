"""Parts of benchmarks/first_answer.py; the whole takes minutes and a network."""

from __future__ import annotations

import http.server
import runpy
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
CONTENT = b"x" * 300_000


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    """A server that answers everything with CONTENT."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def counting_proxy() -> Any:
    return runpy.run_path(str(FOLDER / "counting_proxy.py"))["counting_proxy"]()


def test_plain_downloads_are_counted(address: str) -> None:
    with counting_proxy() as proxy:
        handler = urllib.request.ProxyHandler({"http": proxy.url})
        opener = urllib.request.build_opener(handler)
        for _ in range(2):
            with opener.open(f"http://{address}/file", timeout=60) as answer:
                assert answer.read() == CONTENT
        assert 2 * len(CONTENT) < proxy.num_bytes < 2 * len(CONTENT) + 1000


def test_tunnels_are_counted_and_a_host_that_does_not_answer_is_502(address: str) -> None:
    with counting_proxy() as proxy:
        with socket.create_connection(proxy.server_address, timeout=60) as sock:
            sock.sendall(f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
            assert sock.recv(100).startswith(b"HTTP/1.1 200 ")
            assert proxy.num_bytes == 0
            sock.sendall(b"GET /file HTTP/1.0\r\n\r\n")
            received = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        assert received.endswith(CONTENT) and proxy.num_bytes == len(received)
        with socket.create_connection(proxy.server_address, timeout=60) as sock:
            sock.sendall(b"CONNECT 127.0.0.1:9 HTTP/1.1\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.1 502 ")


def test_the_environment_is_a_new_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    names = dict.fromkeys(("describe_machine", "make_parser", "record"))
    monkeypatch.setitem(sys.modules, "recording", SimpleNamespace(**names))  # it imports torch
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    monkeypatch.setenv("PIP_CACHE_DIR", "/elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "http://index")
    monkeypatch.setenv("PATH", f"{Path(sys.prefix) / 'bin'}:/usr/bin")
    program = runpy.run_path(str(FOLDER / "first_answer.py"))
    found = program["new_environment"](tmp_path / "home", tmp_path, "http://proxy")
    assert "/elsewhere" not in found.values()
    assert found["PATH"] == "/usr/bin" and found["PIP_INDEX_URL"] == "http://index"
    assert found["HOME"] == str(tmp_path / "home")
    (tmp_path / "file").write_bytes(b"x" * 5000)
    assert program["disk_bytes"](tmp_path) >= 8192
