"""An HTTP proxy that counts the bytes that its clients receive. It listens on 127.0.0.1."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

CHUNK = 1 << 16
CONNECT_SECONDS = 30.0


class CountingProxy(socketserver.ThreadingTCPServer):
    """Passes connections on: tunnels of HTTPS (CONNECT), and plain HTTP to one host each."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.num_bytes = 0
        """Bytes that clients have received, with the overhead of HTTP and TLS."""
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes


class _Handler(socketserver.StreamRequestHandler):
    server: CountingProxy

    def handle(self) -> None:
        first = self.rfile.readline(CHUNK)
        method, target, _ = first.decode("latin-1").split(" ", 2)
        is_tunnel = method == "CONNECT"
        address = urlsplit(f"//{target}" if is_tunnel else target)
        port = address.port or (443 if is_tunnel else 80)
        try:
            far = socket.create_connection((address.hostname or "", port), CONNECT_SECONDS)
        except OSError:
            self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            return
        with far:
            far.settimeout(None)
            if is_tunnel:
                while self.rfile.readline(CHUNK).strip():
                    pass
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                far.sendall(first)  # servers take whole addresses, too
            self._pass_on(far)

    def _pass_on(self, far: socket.socket) -> None:
        back = threading.Thread(target=self._receive, args=(far,), daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            while data := self.rfile.read1(CHUNK):
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)
        back.join()

    def _receive(self, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(CHUNK):
                self.server.count(len(data))
                self.connection.sendall(data)
            self.connection.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def counting_proxy() -> Iterator[CountingProxy]:
    """A running proxy, which ends with the block."""
    with CountingProxy() as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
