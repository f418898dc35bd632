"""Where the server listens: TCP of both kinds, Unix sockets, HTTPS, and behind a proxy's prefix."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import openai
import pytest
import trustme

from tokenmill.api import server
from tokenmill.api.http.connections import handshakes
from tokenmill.api.listening import Address, bind, listening
from tokenmill.core.errors import ConfigError

from .serving import PATIENCE, Served, serve_engine, toy_engine

ASK = {"prompt": "abc", "max_tokens": 2}


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_the_printed_url_reaches_the_listening_socket(host: str) -> None:
    address = Address(host=host, port=0)
    with listening(address) as sock:
        url = urlsplit(address.url(sock))
        assert (url.scheme, url.hostname) == ("http", "127.0.0.1")
        assert url.port == sock.getsockname()[1]
        socket.create_connection(("127.0.0.1", url.port), timeout=20).close()


class Bound:
    """A socket that is bound to an IPv6 address, on machines without IPv6."""

    def __init__(self, host: str) -> None:
        self._host = host

    def getsockname(self) -> tuple[str, int, int, int]:
        return self._host, 8000, 0, 0


@pytest.mark.parametrize("host", ["::1", "::"])
def test_an_address_of_ipv6_is_in_brackets(host: str) -> None:
    assert Address(host=host).url(Bound(host)) == "http://[::1]:8000"  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["::1", "[::1]", "::"])
def test_a_server_listens_on_ipv6(host: str) -> None:
    try:
        bind("::1", 0).close()
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    with serve_engine(toy_engine(), address=Address(host=host, port=0)) as served:
        assert served.url.startswith("http://[::1]:")
        with served.client() as http:
            assert http.post("/v1/completions", json=ASK).status_code == 200
        if host == "::":
            port = urlsplit(served.url).port
            socket.create_connection(("127.0.0.1", port), timeout=20).close()


def test_no_part_of_an_answer_waits_for_an_acknowledgement_of_the_part_before_it() -> None:
    """asyncio leaves Nagle's algorithm on, unless the listening socket names its protocol."""

    async def accepted() -> int:
        loop, found = asyncio.get_running_loop(), asyncio.Queue[int]()

        class Connection(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                sock = transport.get_extra_info("socket")
                found.put_nowait(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        with bind("127.0.0.1", 0) as sock:
            async with await loop.create_server(Connection, sock=sock):
                _, writer = await asyncio.open_connection(*sock.getsockname())
                try:
                    return await asyncio.wait_for(found.get(), PATIENCE)
                finally:
                    writer.close()

    assert asyncio.run(accepted())


# Unix sockets


def over(path: Path) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(path))
    return httpx.Client(transport=transport, base_url="http://any.name", timeout=PATIENCE)


def test_a_unix_socket_serves_its_owner_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    before = os.umask(0o077)
    try:
        with serve_engine(toy_engine(), address=Address(uds=path), is_local=False) as served:
            assert served.url == f"unix:{path}"
            assert path.stat().st_mode & 0o077 == 0
            with over(path) as http:
                assert http.post("/v1/completions", json=ASK).status_code == 200
                with http.stream("POST", "/v1/completions", json=ASK | {"stream": True}) as answer:
                    assert list(answer.iter_lines())[-2:] == ["data: [DONE]", ""]
    finally:
        os.umask(before)
    assert not path.exists()


def test_the_socket_of_a_server_that_died_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    with listening(Address(uds=path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_socket_in_use_and_other_files_are_left_alone(tmp_path: Path) -> None:
    used, file = tmp_path / "socket", tmp_path / "notes"
    file.write_text("mine")
    with listening(Address(uds=used)):
        for path, reason in ((used, "another server"), (file, "not a socket")):
            with pytest.raises(ConfigError, match=reason), listening(Address(uds=path)):
                pass
        assert used.exists()
    assert file.read_text() == "mine"
    with (
        pytest.raises(ConfigError, match="too long"),
        listening(Address(uds=Path("/" + 200 * "x"))),
    ):
        pass


# HTTPS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def secure_address(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Address:
    folder = tmp_path_factory.mktemp("tls")
    issued = authority.issue_cert("127.0.0.1")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return Address(port=0, ssl_certfile=certificate, ssl_keyfile=key)


@pytest.fixture(scope="module")
def secure(secure_address: Address) -> Iterator[Served]:
    with serve_engine(toy_engine(), address=secure_address) as served:
        yield served


def test_https_serves_answers_and_streams(secure: Served, authority: trustme.CA) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    assert secure.url.startswith("https://127.0.0.1:")
    with (
        secure.client(verify=context) as http,
        openai.OpenAI(base_url=f"{secure.url}/v1", api_key="none", http_client=http) as client,
    ):
        assert client.completions.create(model="simulated", prompt="abc", max_tokens=2).choices
        chunks = client.completions.create(
            model="simulated", prompt="abc", max_tokens=5, stream=True
        )
        assert len("".join(chunk.choices[0].text for chunk in chunks)) == 5


def test_a_client_that_does_not_trust_the_certificate_hangs_up(secure: Served) -> None:
    with secure.client() as http, pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY"):
        http.get("/health")


def test_an_https_server_does_not_answer_plain_http(secure: Served) -> None:
    plain = secure.url.replace("https", "http")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{plain}/health", timeout=PATIENCE, trust_env=False)


def silent(served: Served) -> socket.socket:
    """A connection whose client never begins the handshake."""
    return socket.create_connection(("127.0.0.1", urlsplit(served.url).port or 0), timeout=PATIENCE)


def test_a_handshake_that_is_never_completed_is_ended(
    secure: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS", 0.2)
    for sent in (b"", b"\x16\x03\x01\x02\x00"):  # nothing, and the first bytes of a handshake
        with silent(secure) as client:
            client.sendall(sent)
            assert client.recv(1) == b""


def test_handshakes_count_as_connections(
    secure_address: Address, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "max_connections", lambda: 2)
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS", 10 * PATIENCE)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with (
        serve_engine(toy_engine(), address=secure_address) as served,
        silent(served) as first,
        silent(served),
        served.client(verify=context) as http,
    ):
        assert http.get("/health").status_code == 200
        with suppress(ConnectionResetError):
            assert first.recv(1) == b"", "the oldest one made room"


def test_a_request_may_come_with_the_end_of_the_handshake(
    secure: Served, authority: trustme.CA
) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, sent, server_hostname="127.0.0.1")
    with silent(secure) as client:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                client.sendall(sent.read())
                received.write(client.recv(1 << 16))
        tls.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        client.sendall(sent.read())  # the handshake's last bytes, and the request
        received.write(client.recv(1 << 16))
        while not (answer := read_some(tls)):
            received.write(client.recv(1 << 16))
    assert answer.startswith(b"HTTP/1.1 200")


def read_some(tls: ssl.SSLObject) -> bytes:
    try:
        return tls.read()
    except ssl.SSLWantReadError:
        return b""


def test_a_certificate_that_cannot_be_used_is_refused_at_once(
    authority: trustme.CA, tmp_path: Path
) -> None:
    one, other = authority.issue_cert("a.test"), authority.issue_cert("b.test")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_bytes(one.cert_chain_pems[0].bytes())
    key.write_bytes(other.private_key_pem.bytes())
    for files, reason in (
        ({"ssl_certfile": certificate, "ssl_keyfile": key}, "its private key"),
        ({"ssl_certfile": tmp_path / "none.pem"}, "no such file"),
        ({"ssl_keyfile": key}, "needs --ssl-certfile"),
    ):
        with pytest.raises(ConfigError, match=reason), listening(Address(port=0, **files)):
            pass


# Behind a proxy


def test_paths_with_and_without_the_proxys_prefix_are_served() -> None:
    with (
        serve_engine(toy_engine(), root_path="/llm", api_keys=("k",), admin_key="a") as served,
        served.client() as http,
    ):
        key = {"Authorization": "Bearer k"}
        for prefix in ("", "/llm"):
            assert http.get(f"{prefix}/health").status_code == 200
            assert http.get(f"{prefix}/v1/models").status_code == 401
            assert http.get(f"{prefix}/v1/models", headers=key).status_code == 200
            assert http.get(f"{prefix}/debug/state", headers=key).status_code == 403
        for path in ("/llmx/health", "/llm/llm/health", "/llm//health", "/LLM/health"):
            assert http.get(path).status_code == 401, path
        document = http.get("/llm/openapi.json", headers=key).json()
        assert document["servers"] == [{"url": "/llm"}]
