"""With a key set, every route needs it, whatever the Host header says, except what is public."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import openai
import pytest
from starlette.routing import Route

from tokenmill.api.app import ROUTES
from tokenmill.api.http.keys.auth import PUBLIC_PATHS

from .serving import Served, serve_engine, toy_engine

KEYS = ("first-key", "second-key")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with serve_engine(toy_engine(), api_keys=KEYS) as served:
        yield served


def path_of(route: Route) -> str:
    return route.path.replace("{name:path}", "simulated")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_needs_a_key_or_is_listed_as_public(guarded: Served, route: Route) -> None:
    assert route.methods
    with guarded.client() as http:
        for method in route.methods:
            response = http.request(method, path_of(route), json=None)
            if route.path in PUBLIC_PATHS:
                assert response.status_code == 200
                continue
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                assert "API key" in response.json()["error"]["message"]


def test_only_liveness_and_the_page_are_public() -> None:
    pages = {path for path in PUBLIC_PATHS if path.startswith(("/docs", "/live"))}
    assert PUBLIC_PATHS - pages == {"/health", "/ready", "/ping"}


def test_unknown_paths_need_a_key_too(guarded: Served) -> None:
    with guarded.client() as http:
        for path in ("/nothing", "/health/", "//health", "/health/../v1/models", "/%68ealth/x"):
            assert http.get(path).status_code == 401, path


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens(guarded: Served, key: str) -> None:
    with guarded.client() as http:
        for value in (f"Bearer {key}", f"bearer {key}", f"BEARER   {key}"):
            headers = {"Authorization": value}
            assert http.get("/v1/models", headers=headers).status_code == 200
            assert http.get("/nothing", headers=headers).status_code == 404


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer wrong", "Basic first-key", "first-key", "Bearer first-key2",
     "Bearer first-ke", "Bearer first-key,second-key", "Token first-key"],
)  # fmt: skip
def test_a_wrong_key_or_scheme_is_401(guarded: Served, value: str) -> None:
    with guarded.client() as http:
        assert http.get("/v1/models", headers={"Authorization": value}).status_code == 401


def test_a_wrong_key_gets_another_text_than_a_missing_one(guarded: Served) -> None:
    def message(**headers: str) -> str:
        with guarded.client() as http:
            text: str = http.get("/v1/models", headers=headers).json()["error"]["message"]
        return text

    missing = message()
    assert "needs an API key" in missing
    assert message(Authorization="Basic first-key") == missing
    assert "does not know" in message(Authorization="Bearer wrong-key")
    assert "wrong-key" not in message(Authorization="Bearer wrong-key")


@pytest.mark.parametrize(
    "host", ["x/health?", "x/health#", "/health", "a@b/health", "x?/health", "[::1]/health", ""]
)
def test_a_hostile_host_header_opens_nothing(guarded: Served, host: str) -> None:
    target = urlsplit(guarded.url)
    with socket.create_connection((target.hostname or "", target.port or 0), timeout=20) as sock:
        sock.sendall(f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        status = sock.recv(65536).split(b" ", 2)[1]
    assert status in (b"401", b"400")


def test_the_official_client_says_authentication_error(guarded: Served) -> None:
    for key, is_right in ((KEYS[1], True), ("wrong", False)):
        with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0) as client:
            if is_right:
                assert client.models.list().data
                continue
            with pytest.raises(openai.AuthenticationError, match="API key"):
                client.models.list()


def test_browsers_may_call_from_allowed_origins_only() -> None:
    origin = "https://app.example"
    with (
        serve_engine(toy_engine(), api_keys=KEYS, allowed_origins=(origin,)) as served,
        served.client() as http,
    ):
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        allowed = http.options("/v1/completions", headers=headers)
        assert allowed.headers["access-control-allow-origin"] == origin
        refused = http.options("/v1/completions", headers=headers | {"Origin": "https://evil.test"})
        assert "access-control-allow-origin" not in refused.headers
