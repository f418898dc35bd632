"""The URL that `serve` prints works for a client on the same machine."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from tokenmill.api.server import bind, local_url


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_printed_url_reaches_the_listening_socket(host: str) -> None:
    with bind(host, 0) as sock:
        url = urlsplit(local_url(*sock.getsockname()[:2]))
        assert (url.hostname, url.port) == ("127.0.0.1", sock.getsockname()[1])
        socket.create_connection((url.hostname, url.port), timeout=20).close()


@pytest.mark.parametrize("host", ["::1", "::"])
def test_an_address_of_ipv6_is_in_brackets(host: str) -> None:
    assert local_url(host, 8000) == "http://[::1]:8000"
