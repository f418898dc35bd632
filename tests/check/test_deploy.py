"""The systemd unit is valid, and the proxies of docs/deploy.md send each token at once."""

from __future__ import annotations

import http.server
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from .parts import need

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
NAME = "llm.example.com"


def block(language: str, part: str) -> str:
    """The page's only block of code in a language that has this part."""
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    [found] = [code for code in blocks if part in code]
    return found


def test_the_systemd_unit_is_valid(tmp_path: Path) -> None:
    unit = tmp_path / "tokenmill.service"
    program = shutil.which("true")
    text = (ROOT / "deploy/tokenmill.service").read_text()
    unit.write_text(text.replace("/opt/tokenmill/bin/tokenmill", str(program)))
    command = [need("systemd-analyze", "systemd"), "verify", "--man=no", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr


class Upstream(http.server.BaseHTTPRequestHandler):
    """Sends the first event at once, and the second one when the client has read the first."""

    protocol_version = "HTTP/1.1"
    was_read: threading.Event
    hosts: list[str]

    def do_GET(self) -> None:
        self.hosts.append(self.headers["Host"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._send(b"data: first\n\n")
        came = self.was_read.wait(60)
        self._send(b"data: second\n\n" if came else b"data: late\n\n")
        self._send(b"")

    def _send(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[int]:
    """The port of a server that streams."""
    Upstream.was_read, Upstream.hosts = threading.Event(), []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def nginx_command(folder: Path, port: int, upstream: int) -> list[str]:
    site = block("nginx", "proxy_pass")
    site = site.replace("/etc/ssl/llm.example.com.pem", str(folder / "chain.pem"))
    site = site.replace("/etc/ssl/llm.example.com.key", str(folder / "key.pem"))
    site = site.replace("listen 443", f"listen 127.0.0.1:{port}")
    site = site.replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/errors; events {{}}\n"
        f"http {{ access_log off;\n{site}}}\n"
    )
    return [need("nginx", "nginx-light"), "-c", str(config)]


def caddy_command(folder: Path, port: int, upstream: int) -> list[str]:
    site = block("text", "reverse_proxy").replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
    own = f"{NAME} {{\nbind 127.0.0.1\ntls {folder}/chain.pem {folder}/key.pem"
    settings = f"{{\nadmin off\nauto_https disable_redirects\nhttps_port {port}\n}}\n"
    config = folder / "Caddyfile"
    config.write_text(settings + site.replace(f"{NAME} {{", own))
    return [need("caddy", "caddy"), "run", "--adapter", "caddyfile", "--config", str(config)]


def connect(port: int, authority: trustme.CA) -> ssl.SSLSocket:
    """Connect to the proxy, when it has started."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    while True:
        try:
            raw = socket.create_connection(("127.0.0.1", port), timeout=60)
            return context.wrap_socket(raw, server_hostname=NAME)
        except ConnectionRefusedError:
            time.sleep(0.05)


def ask(sock: ssl.SSLSocket, path: str) -> None:
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode())


def read_until(sock: ssl.SSLSocket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        more = sock.recv(65536)
        assert more, data
        data += more
    return data


@pytest.mark.parametrize("command", [nginx_command, caddy_command])
def test_a_proxy_sends_each_event_at_once_and_hides_paths(
    command: Callable[[Path, int, int], list[str]],
    tmp_path: Path,
    upstream: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    authority = trustme.CA()
    certificate = authority.issue_cert(NAME)
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(tmp_path / "chain.pem", append=True)
    port = free_port()
    with subprocess.Popen(command(tmp_path, port, upstream), stderr=subprocess.DEVNULL) as proxy:
        try:
            with connect(port, authority) as sock:
                ask(sock, "/v1/stream")
                read_until(sock, b"first")
                Upstream.was_read.set()
                read_until(sock, b"second")
            with connect(port, authority) as sock:
                ask(sock, "/metrics")
                assert b" 403 " in read_until(sock, b"\r\n")
        finally:
            proxy.terminate()
    assert Upstream.hosts == [f"127.0.0.1:{upstream}"]
