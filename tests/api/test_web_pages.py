"""A web page in a browser of this machine can neither use nor read a local server without a key."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from .serving import Served, serve_engine, toy_engine
from .test_errors import check_error

ASK: dict[str, Any] = {"prompt": "abc", "max_tokens": 2}
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "sent", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", None]
)
def test_a_body_that_any_page_may_send_is_refused(toy: Served, path: str, sent: str | None) -> None:
    headers = {} if sent is None else {"content-type": sent}
    answer = httpx.post(toy.url + path, content=json.dumps(ASK), headers=headers, trust_env=False)
    assert "application/json" in check_error(answer, 415)["message"]


@pytest.mark.parametrize("sent", ["application/json", "Application/JSON; charset=utf-8"])
def test_json_is_accepted_with_any_parameters(http: httpx.Client, sent: str) -> None:
    headers = {"content-type": sent}
    answer = http.post("/v1/completions", content=json.dumps(ASK), headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "notlocalhost",
        "10.0.0.1",
        "[::2]:80",
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/health", "/nothing"])
def test_a_name_that_points_here_by_dns_is_refused(
    http: httpx.Client, host: str, path: str
) -> None:
    refused = check_error(http.get(path, headers={"host": host}), 403)
    assert refused["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "localhost.", "me.localhost", "127.0.0.2:80", "[::1]:80"]
)
def test_every_name_of_this_machine_is_served(http: httpx.Client, host: str) -> None:
    assert http.get("/v1/models", headers={"host": host}).status_code == 200


def test_an_allowed_name_is_served_and_a_key_needs_no_host_check() -> None:
    headers = {"host": "mill.example:80"}
    with (
        serve_engine(toy_engine(), allowed_hosts=("Mill.example",)) as served,
        served.client() as http,
    ):
        assert http.get("/v1/models", headers=headers).status_code == 200
    with (
        serve_engine(toy_engine(), api_keys=("k",)) as served,
        served.client(headers={"Authorization": "Bearer k"}) as http,
    ):
        assert http.get("/v1/models", headers=headers).status_code == 200


def test_a_browser_asks_first_and_gets_no_permission(http: httpx.Client) -> None:
    headers = {
        "origin": "http://evil.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    for answer in (
        http.options("/v1/completions", headers=headers),
        http.post("/v1/completions", json=ASK, headers={"origin": "http://evil.example"}),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("target", ["http://localhost/v1/models", "HTTP://127.0.0.1:1/v1/models?a"])
def test_a_target_may_name_the_host(http: httpx.Client, target: str) -> None:
    assert _get(http, target).json()["object"] == "list"


def test_a_target_without_a_path_is_the_root(http: httpx.Client) -> None:
    assert _get(http, "http://localhost").text == http.get("/").text


def test_the_host_of_a_target_is_checked_instead_of_the_header(http: httpx.Client) -> None:
    refused = check_error(_get(http, "http://evil.example/v1/models"), 403)
    assert refused["code"] == "host_not_allowed"
    assert _get(http, "http://localhost/v1/models", host="evil.example").status_code == 200


def _get(http: httpx.Client, target: str, host: str = "localhost") -> httpx.Response:
    return http.get("/", headers={"host": host}, extensions={"target": target.encode()})
