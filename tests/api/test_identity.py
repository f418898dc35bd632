"""Who asks, over HTTP: one id everywhere, and what plugins see of keys, users and headers."""

from __future__ import annotations

import argparse
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tokenmill.api.commands import serve
from tokenmill.core.contract.client import Load
from tokenmill.core.contract.events import Admitted, Finished, FinishedRequest
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.policy import RequestView

from .serving import Served, SteeredExecutor, serve_engine, toy_engine
from .test_errors import check_error

ASK: dict[str, Any] = {"prompt": "abc", "max_tokens": 3}
KEYS = ("first-key", "second-key")


class Overheard:
    """A plugin that writes down what it is shown of each request."""

    def __init__(self) -> None:
        self.views: list[tuple[Any, ...]] = []
        self.admitted: list[Admitted] = []
        self.finished: list[FinishedRequest] = []

    @hookimpl
    def admit(self, request: RequestView, load: Load) -> None:
        own = request.options
        self.views.append(
            (request.request_id, own.client_request_id, own.user, own.api_key_id,
             own.cache_salt, request.deadline is not None, dict(own.metadata))
        )  # fmt: skip

    @hookimpl
    def on_admitted(self, event: Admitted) -> None:
        self.admitted.append(event)

    @hookimpl
    def on_finished(self, event: Finished) -> None:
        self.finished += event.requests

    def seen_by(self, http: httpx.Client, body: dict[str, Any], **headers: str) -> httpx.Response:
        """The answer to a request, and what the plugin saw of nothing but it."""
        self.__init__()  # type: ignore[misc]
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return http.post("/v1/completions", json=body, headers=named)


@pytest.fixture(scope="module")
def overheard() -> Overheard:
    return Overheard()


@pytest.fixture(scope="module")
def served(overheard: Overheard) -> Iterator[Served]:
    engine = toy_engine(extra=[overheard], request_timeout=600.0)
    settings = {
        "api_keys": KEYS,
        "api_key_secret": b"a secret",
        "metadata_headers": ("X-Tenant", "x-plan"),
    }
    with serve_engine(engine, **settings) as running:
        yield running


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client(headers={"Authorization": f"Bearer {KEYS[0]}"}) as client:
        yield client


def test_plugins_see_who_asks(http: httpx.Client, overheard: Overheard) -> None:
    body = {"user": "u1", "cache_salt": "s1", "metadata": {"job": "7"}, "priority": 0}
    answer = overheard.seen_by(http, ASK | body, X_Request_Id="abc", X_Tenant="acme")
    assert answer.status_code == 200
    [(request_id, client_id, user, key_id, salt, has_deadline, metadata)] = overheard.views
    assert (request_id, client_id, user, salt) == ("cmpl-abc", "abc", "u1", "s1")
    assert has_deadline
    assert metadata == {"job": "7", "x-tenant": "acme"}
    assert re.fullmatch("[0-9a-f]{16}", key_id)
    [admitted], [finished] = overheard.admitted, overheard.finished
    for event in (admitted, finished):
        assert event.request_id == answer.json()["id"] == request_id
        own = event.options
        assert (own.client_request_id, own.user, own.api_key_id) == ("abc", "u1", key_id)
        assert (own.cache_salt, own.metadata) == ("s1", metadata)
        assert event.deadline is not None


def test_the_id_of_a_key_is_not_the_key_and_survives_a_restart(
    http: httpx.Client, overheard: Overheard
) -> None:
    def key_id(client: httpx.Client, key: str) -> str:
        assert overheard.seen_by(client, ASK, Authorization=f"Bearer {key}").status_code == 200
        found: str = overheard.views[0][3]
        return found

    ids = [key_id(http, key) for key in KEYS]
    assert len(set(ids)) == 2 and not any(key in ids for key in KEYS)
    for secret, is_same in ((b"a secret", True), (b"another", False), (None, False)):
        engine = toy_engine(extra=[overheard])
        with (
            serve_engine(engine, api_keys=KEYS, api_key_secret=secret) as again,
            again.client() as client,
        ):
            assert (key_id(client, KEYS[0]) == ids[0]) is is_same


def test_without_keys_a_request_has_no_key_id(overheard: Overheard) -> None:
    with serve_engine(toy_engine(extra=[overheard])) as served, served.client() as client:
        overheard.seen_by(client, ASK, Authorization="Bearer whatever", X_Tenant="acme")
    [(_, _, user, key_id, salt, has_deadline, metadata)] = overheard.views
    assert (user, key_id, salt, has_deadline, metadata) == (None, None, None, False, {})


@pytest.mark.parametrize(
    ("body", "headers", "param"),
    [
        ({"metadata": {"x-tenant": "forged"}}, {}, "metadata"),
        ({"metadata": {"X-Tenant": "forged"}}, {}, "metadata"),
        ({"metadata": {"a": 1}}, {}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, {}, "metadata"),
        ({"metadata": {"x" * 65: "a"}}, {}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, {}, "metadata"),
        ({"metadata": {str(i): "" for i in range(16)}}, {"X-Tenant": "a"}, "metadata"),
        ({}, {"X-Tenant": "x" * 513}, "metadata"),
        ({"user": "x" * 513}, {}, "user"),
    ],
)
def test_what_is_too_long_or_forged_is_refused_by_its_name(
    http: httpx.Client, body: dict[str, Any], headers: dict[str, str], param: str
) -> None:
    refused = http.post("/v1/completions", json=ASK | body, headers=headers)
    assert check_error(refused, 400)["param"] == param


def test_a_metadata_header_may_be_given_once(http: httpx.Client) -> None:
    headers = [("X-Tenant", "a"), ("x-tenant", "b")]
    refused = http.post("/v1/completions", json=ASK, headers=headers)
    assert check_error(refused, 400)["param"] == "x-tenant"


def test_prompts_and_choices_are_numbered_and_share_the_answers_id(
    http: httpx.Client, overheard: Overheard
) -> None:
    body = {"prompt": ["abc", "de"], "n": 2, "max_tokens": 2}
    answer = overheard.seen_by(http, body, X_Request_Id="many/1")
    assert answer.json()["id"] == "cmpl-many/1"
    assert {(r.request_id, r.options.prompt_index, r.choice_index) for r in overheard.finished} == {
        ("cmpl-many/1", prompt, choice) for prompt in range(2) for choice in range(2)
    }
    assert [(e.request_id, e.options.prompt_index, e.n) for e in overheard.admitted] == [
        ("cmpl-many/1", 0, 2),
        ("cmpl-many/1", 1, 2),
    ]


def test_an_id_that_a_live_request_has_gets_a_suffix_everywhere() -> None:
    executor, overheard = SteeredExecutor(), Overheard()
    executor.gate.clear()
    headers = {"X-Request-Id": "same"}
    answers: list[httpx.Response] = []

    def ask() -> None:
        with served.client() as client:
            answers.append(client.post("/v1/completions", json=ASK, headers=headers))

    with serve_engine(toy_engine(executor, extra=[overheard])) as served:
        threads = [threading.Thread(target=ask) for _ in range(3)]
        try:
            for thread in threads:
                thread.start()
            served.wait_until(lambda load: load["num_running"] + load["num_waiting"] == 3)
        finally:
            executor.gate.set()
            for thread in threads:
                thread.join()
    ids = {answer.json()["id"] for answer in answers}
    assert len(ids) == 3 and "cmpl-same" in ids
    assert all(i.startswith("cmpl-same-") for i in ids - {"cmpl-same"})
    assert {r.request_id for r in overheard.finished} == ids
    assert {r.options.client_request_id for r in overheard.finished} == {"same"}
    assert {answer.headers["x-request-id"] for answer in answers} == {"same"}


def test_requests_with_different_salts_never_share_blocks(http: httpx.Client) -> None:
    def num_cached(salt: str | None) -> int:
        body = {"prompt": "a prompt of several blocks", "max_tokens": 1, "cache_salt": salt}
        usage = http.post("/v1/completions", json=body).json()["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    assert [num_cached(salt) > 0 for salt in ("a", "b", None, "a", "b", None)] == [
        False, False, False, True, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["X Tenant", "", "Authorization", "cookie", "x" * 65])
def test_a_header_that_cannot_be_metadata_is_refused_at_start(name: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"name|secret"):
        serve._header_name(name)
