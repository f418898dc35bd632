"""The socket that the server listens on: TCP or Unix, with or without TLS."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ConfigError
from .http.host_check import host_name, is_loopback

BACKLOG = 1024
SEND_BUFFER_BYTES = 256 << 10
"""Limit of unsent data in the kernel per connection; the kernel takes twice the memory for it.
Without a limit it holds several MB for a client that does not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address at which the server listens, and the certificate that it shows."""

    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None
    """Path of a Unix socket, which replaces host and port."""
    ssl_certfile: Path | None = None
    """The server's certificate in PEM format, with its chain. None: no TLS."""
    ssl_keyfile: Path | None = None
    """The private key, if it is not in `ssl_certfile`."""

    @property
    def is_loopback(self) -> bool:
        """Whether it is a TCP address that only this machine reaches."""
        return self.uds is None and is_loopback(host_name(self.host))

    def url(self, sock: socket.socket) -> str:
        """The URL for a client on this machine; for a Unix socket its path."""
        if self.uds is not None:
            return f"unix:{self.uds}"
        scheme = "http" if self.ssl_certfile is None else "https"
        return f"{scheme}://{_local_name(*sock.getsockname()[:2])}"


@contextlib.contextmanager
def listening(address: Address) -> Iterator[socket.socket]:
    """A listening socket; the file of a Unix socket is removed at the end.

    It is opened before the model is loaded, so that a port in use or a wrong certificate is
    reported at once. Raises ConfigError if it cannot be used.
    """
    tls_context(address)
    if address.uds is None:
        with bind(address.host, address.port) as sock:
            yield sock
        return
    with bind_unix(address.uds) as sock:
        try:
            yield sock
        finally:
            address.uds.unlink(missing_ok=True)


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises ConfigError if the address cannot be used."""
    try:
        family, found = _resolve(host, port)
        # Without the protocol, asyncio does not switch Nagle's algorithm off for its connections:
        # the second part of each answer would wait for the client's acknowledgement, up to 40 ms.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # :: has IPv4, too
        return _listen(sock, found)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; "
            "choose another with --host or --port"
        ) from error


def bind_unix(path: Path) -> socket.socket:
    """A listening Unix socket; the umask decides who may connect.

    A socket file that a server left behind is replaced. Raises ConfigError if the path is in use or
    cannot be used.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        return _listen(sock, str(path))
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)  # a path that is too long has no strerror
        raise ConfigError(f"cannot listen on --uds {path}: {reason}") from error
    except BaseException:
        sock.close()
        raise


def _listen(sock: socket.socket, address: object) -> socket.socket:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.bind(address)  # type: ignore[arg-type]
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _resolve(host: str, port: int) -> tuple[int, object]:
    """Family and address of a host. If a name has addresses of both families, an IPv4 address."""
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, address


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a server that has ended."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"--uds {path} exists and is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise ConfigError(f"another server listens on --uds {path}; end it or choose another path")


def tls_context(address: Address) -> ssl.SSLContext | None:
    """The server's side of TLS; None if the address has no certificate.

    Raises ConfigError unless certificate and key can be loaded and belong together.
    """
    if address.ssl_certfile is None:
        if address.ssl_keyfile is not None:
            raise ConfigError("--ssl-keyfile needs --ssl-certfile")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files = f"--ssl-certfile {address.ssl_certfile}"
    if address.ssl_keyfile is not None:
        files += f" and --ssl-keyfile {address.ssl_keyfile}"
    try:
        # An empty password: otherwise OpenSSL asks for the password of a key on the terminal.
        context.load_cert_chain(address.ssl_certfile, address.ssl_keyfile, password="")
    except FileNotFoundError as error:
        raise ConfigError(f"cannot read {files}: no such file") from error
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"{files} cannot be loaded: {error}; give a certificate and its private key in PEM "
            "format, the key without a password"
        ) from error
    return context


def _local_name(host: str, port: int) -> str:
    """Host and port for a client on this machine.

    0.0.0.0 and :: mean all addresses to a server and none to a client, so loopback replaces them.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        host = "::1" if address.version == 6 else "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
