"""Named keys from a file, their limits, and the admin key."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.routing import Route

from tokenmill.api.app import ADMIN_ROUTES
from tokenmill.api.http.keys.auth import ADMIN_PATHS
from tokenmill.api.http.keys.file import read_key_file
from tokenmill.api.http.keys.ring import KeyRing
from tokenmill.api.stopping import Stopper
from tokenmill.core.errors import ConfigError
from tokenmill.testing.simulated.executor import SimulatedExecutor

from .serving import Served, SteeredExecutor, serve_engine, toy_engine
from .test_errors import check_error

ASK: dict[str, Any] = {"prompt": "abc", "max_tokens": 2}
FILE = f"""
[search]
key = "sk-search"
requests_per_minute = 2

[chat]
sha256 = "{hashlib.sha256(b"sk-chat").hexdigest()}"
max_concurrent_requests = 1

[batch]
key = "sk-batch"
tokens_per_minute = 10

[free]
key = "sk-free"
"""
KEYS = ("search", "chat", "batch", "free")


@pytest.fixture
def executor() -> SteeredExecutor:
    return SteeredExecutor()


@pytest.fixture
def served(tmp_path: Path, executor: SimulatedExecutor) -> Iterator[Served]:
    file = write(tmp_path, FILE)
    with serve_engine(toy_engine(executor), api_key_file=file, admin_key="sk-admin") as running:
        running.headers = {"Authorization": "Bearer sk-admin"}
        yield running


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "keys.toml"
    file.write_text(text)
    file.chmod(mode)
    return file


def ask(http: httpx.Client, name: str, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer sk-{name}"}
    return http.post("/v1/completions", json=ASK | body, headers=headers)


def test_every_key_of_the_file_opens_and_no_other_does(http: httpx.Client) -> None:
    for name in KEYS:
        assert ask(http, name).status_code == 200, name
    for name in ("other", "searc", ""):
        assert ask(http, name).status_code == 401, name
    assert http.get("/v1/models").status_code == 401


def test_each_key_has_its_own_limit_of_requests(http: httpx.Client) -> None:
    assert [ask(http, "search").status_code for _ in range(3)] == [200, 200, 429]
    refused = ask(http, "search")
    error = check_error(refused, 429)
    assert error["code"] == "rate_limit_exceeded"
    assert "2 requests per minute" in error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert [ask(http, "free").status_code for _ in range(4)] == [200] * 4


def test_a_limit_of_tokens_counts_prompt_and_answer(http: httpx.Client) -> None:
    assert [ask(http, "batch").status_code for _ in range(3)] == [200, 200, 429]


def test_a_limit_of_concurrent_requests_counts_whole_calls(
    served: Served, http: httpx.Client, executor: SteeredExecutor
) -> None:
    executor.gate.clear()
    answers: list[httpx.Response] = []
    call = threading.Thread(
        target=lambda: answers.append(ask(http, "chat", prompt=["a", "b"], n=2))
    )
    call.start()
    served.wait_until(lambda load: load["num_running"] + load["num_waiting"] == 4)
    refused = ask(http, "chat")
    assert "1 concurrent requests" in check_error(refused, 429)["message"]
    assert refused.headers["retry-after"] == "1"
    executor.gate.set()
    call.join()
    assert answers[0].status_code == 200 and len(answers[0].json()["choices"]) == 4
    served.wait_idle()
    assert ask(http, "chat").status_code == 200


def limits_of(answer: httpx.Response, unit: str) -> list[str]:
    return [answer.headers[f"x-ratelimit-{name}-{unit}"] for name in ("limit", "remaining")]


def test_headers_say_what_is_left(http: httpx.Client) -> None:
    first, second, refused = (ask(http, "search") for _ in range(3))
    assert [limits_of(answer, "requests") for answer in (first, second, refused)] == [
        ["2", "1"],
        ["2", "0"],
        ["2", "0"],
    ]
    assert re.fullmatch(r"(1m)?[0-9.]+s", second.headers["x-ratelimit-reset-requests"])
    assert "x-ratelimit-limit-tokens" not in first.headers, "the key has no such limit"
    body = ASK | {"max_tokens": 4, "stream": True}
    streamed = ask(http, "batch", **body)
    assert limits_of(streamed, "tokens") == ["10", "3"], "before the answer it may be the longest"
    assert not any(name.startswith("x-ratelimit") for name in ask(http, "free").headers)


def test_a_refused_request_costs_nothing(http: httpx.Client) -> None:
    for _ in range(3):
        assert ask(http, "search", max_tokens=100_000).status_code == 400
    assert ask(http, "search").status_code == 200


def test_tokens_that_were_not_generated_are_given_back(http: httpx.Client) -> None:
    text = ask(http, "free", max_tokens=5, seed=1).json()["choices"][0]["text"]
    body = {"max_tokens": 5, "seed": 1, "stop": [text[0]]}
    assert ask(http, "batch", **body).status_code == 200  # pays 3 + 5, gets 4 back
    assert limits_of(ask(http, "batch", max_tokens=2), "tokens")[1] == "1"


def test_the_official_client_waits_and_tries_again(served: Served) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-batch", max_retries=0) as client:
        client.completions.create(model="simulated", prompt="abcdefgh", max_tokens=2)
        with pytest.raises(openai.RateLimitError, match="10 tokens per minute"):
            client.completions.create(model="simulated", prompt="a", max_tokens=1)


# The admin key


def test_every_admin_route_is_guarded_and_described() -> None:
    assert all(route.path.startswith(ADMIN_PATHS) for route in ADMIN_ROUTES)
    with serve_engine(toy_engine(), admin_key="sk-admin") as served, served.client() as http:
        document = http.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            is_open = operation.get("security") == []
            assert is_open is not path.startswith(ADMIN_PATHS), path
            assert ("401" in operation["responses"]) is not is_open, path


def call(http: httpx.Client, route: Route, headers: dict[str, str]) -> httpx.Response:
    method = "POST" if "POST" in (route.methods or ()) else "GET"
    return http.request(method, route.path, headers=headers)


def test_admin_routes_are_for_the_admin_key_only(http: httpx.Client) -> None:
    for route in ADMIN_ROUTES:
        statuses = {}
        for name in ("admin", "free", "other"):
            headers = {"Authorization": f"Bearer sk-{name}"}
            statuses[name] = call(http, route, headers).status_code
        found = 404 if "{name" in route.path else 200
        assert statuses == {"admin": found, "free": 403, "other": 401}
        assert call(http, route, {}).status_code == 401
    assert ask(http, "admin").status_code == 200


def test_a_line_end_in_the_path_opens_no_admin_route(http: httpx.Client) -> None:
    key = {"Authorization": "Bearer sk-chat"}
    assert http.get("/debug/state%0A", headers=key).status_code == 403


@pytest.mark.parametrize("keys", ["secret", ["secret", ""]])
def test_a_text_is_no_list_of_keys_and_no_key_is_empty(keys: Any) -> None:
    with pytest.raises(ConfigError, match="list of keys"):
        KeyRing(keys)
    with pytest.raises(ConfigError, match="may be empty"):
        KeyRing(admin_key="")


@pytest.mark.parametrize("settings", [{}, {"api_keys": ("sk-free",)}])
def test_without_an_admin_key_there_are_no_admin_routes(settings: dict[str, Any]) -> None:
    with serve_engine(toy_engine(), **settings) as served, served.client() as http:
        for route in ADMIN_ROUTES:
            headers = {"Authorization": "Bearer sk-free"}
            answer = call(http, route, headers)
            assert answer.status_code == 404
            assert answer.json()["error"]["message"].endswith("here; the server has no --admin-key")


def test_an_admin_key_alone_leaves_the_other_routes_open() -> None:
    with serve_engine(toy_engine(), admin_key="sk-admin") as served, served.client() as http:
        assert http.post("/v1/completions", json=ASK).status_code == 200
        assert http.get("/debug/state").status_code == 401


def test_the_state_shows_live_requests_and_no_key(
    served: Served, http: httpx.Client, executor: SteeredExecutor
) -> None:
    executor.gate.clear()
    call = threading.Thread(target=lambda: ask(http, "free", request_id="seen", max_tokens=9))
    call.start()
    served.wait_until(lambda load: load["num_running"] == 1)
    answer = http.get("/debug/state", headers={"Authorization": "Bearer sk-admin"})
    executor.gate.set()
    call.join()
    state = answer.json()
    [request] = state["requests"]
    assert (request["request_id"], request["api_key_id"]) == ("cmpl-seen", "free")
    assert (request["status"], request["num_prompt_tokens"]) == ("running", 3)
    assert state["load"]["num_running"] == 1
    assert state["config"]["max_num_seqs"] > 0 and state["model"]["name"] == "simulated"
    assert "sk-" not in answer.text


# The file


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no key"),
        ("[a", "Expected"),
        ('[a]\nkey = "SECRET"\nsha256 = "SECRET"', "either key or sha256"),
        ("[a]\nrequests_per_minute = 1", "either key or sha256"),
        ('[a]\nkey = " "', "key is empty"),
        ('[a]\nsha256 = "SECRET"', "64 hexadecimal digits"),
        ('[a]\nkey = "SECRET"\n[b]\nkey = "SECRET"', r"\[a\] and \[b\] have the same key"),
        ('[a]\nkey = "SECRET"\nrequest_per_minute = 1', r"\[a\]: .*request_per_minute"),
        ('[a]\nkey = "SECRET"\nrequests_per_minute = -1', r"\[a\]: requests_per_minute .*>= 0.0"),
        ("[a]\nkey = SECRET", "at line 2"),
        ('["a b"]\nkey = "SECRET"', "a name has"),
        ('key = "SECRET"', r"\[key\] must be a table"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_showing_a_key(
    text: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        read_key_file(write(tmp_path, text))
    assert "SECRET" not in str(caught.value) and "keys.toml" in str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604])
def test_a_file_that_others_may_read_is_warned_about(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        read_key_file(write(tmp_path, FILE, mode))
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == ([] if mode == 0o600 else ["api_key_file_is_open"])


def test_a_key_is_not_given_twice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="also given"):
        KeyRing(("sk-free",), file=write(tmp_path, FILE))


def test_the_file_is_read_again_at_sighup_and_a_wrong_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> list[list[bool]]:
        ring, found = KeyRing(file=write(tmp_path, FILE)), []
        reloaded = asyncio.Event()

        def reload() -> None:
            ring.reload()
            reloaded.set()

        with Stopper(0.0) as stopper:
            stopper.call_at_hangup(reload)
            for text in ('[free]\nkey = "sk-new"', "[free", FILE):
                write(tmp_path, text)
                reloaded.clear()
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.wait_for(reloaded.wait(), 20)
                found.append([ring.find(key) is not None for key in (b"sk-free", b"sk-new")])
        return found

    with caplog.at_level(logging.INFO):
        found = asyncio.run(run())
    assert found == [[False, True], [False, True], [True, False]]
    assert [record.getMessage() for record in caplog.records] == [
        "api_keys_reloaded",
        "api_keys_not_reloaded",
        "api_keys_reloaded",
    ]
    assert "sk-" not in caplog.text
