"""Transforms change requests before admission, and answers, in the server's process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.core.plugin_packages import Packages

from .scripted import ASSISTANT, TEMPLATE, byte_tokenizer, scripted_server

HEADER = """
from tokenmill.plugin import InvalidRequestError, Transformed, hookimpl, kinds
TOKENMILL_API = (1, 1)
"""
CODE = """
seen = []

class Hold:
    def __init__(self, name):
        self.name, self.held = name, ""

    def feed(self, text):
        if "crash" in text:
            raise ValueError("planted")
        self.held += text
        return ""

    def finish(self):
        return f"{self.name}({self.held})"

class Wrap:
    name = "outer"

    def begin(self, texts, options):
        seen.append((self.name, [(one.role, one.text) for one in texts]))
        if any("forbidden" in one.text for one in texts):
            raise InvalidRequestError("no such words", param="messages")
        if any("broken" in one.text for one in texts):
            return None
        texts = [one.text + self.name[0] for one in texts]
        return Transformed(texts=texts, answer=lambda: Hold(self.name))

class Inner(Wrap):
    name = "inner"

@hookimpl
def register(registry):
    registry.offer(kinds.TRANSFORM, "outer", Wrap)
    registry.offer(kinds.TRANSFORM, "inner", Inner)
"""
SAYS = "It is late."
CHANGED = f"outer(inner({SAYS}))"


@pytest.fixture
def wrapped(packages: Packages) -> Iterator[tuple[httpx.Client, Any]]:
    packages.install("wrap", CODE, header=HEADER)
    packages.write_settings('[plugins]\nenable = ["wrap"]\n')
    with (
        scripted_server(route="ollama") as (served, model),
        httpx.Client(base_url=served.url) as http,
    ):
        model.says = SAYS
        yield http, model


def ask(http: httpx.Client, text: str = "x", **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 20}
    return http.post("/v1/chat/completions", json=body | fields)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_requests_pass_in_order_and_answers_in_reverse(wrapped: Any) -> None:
    import wrap  # type: ignore[import-not-found]

    http, _ = wrapped
    answer = ask(http, n=2).json()
    assert [one["message"]["content"] for one in answer["choices"]] == [CHANGED, CHANGED]
    assert wrap.seen[-2:] == [("outer", [("user", "x")]), ("inner", [("user", "xo")])]
    streamed = events(ask(http, stream=True))
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in streamed)
    assert text == CHANGED


def test_all_apis_use_them(wrapped: Any) -> None:
    http, _ = wrapped
    messages = [{"role": "user", "content": "x"}]
    said = http.post("/v1/messages", json={"model": ask(http).json()["model"], "max_tokens": 20,
                                           "messages": messages}).json()  # fmt: skip
    assert said["content"][0]["text"] == CHANGED
    said = http.post("/v1/responses", json={"input": "x", "max_output_tokens": 20}).json()
    assert said["output"][0]["content"][0]["text"] == CHANGED
    body: dict[str, Any] = {"model": ask(http).json()["model"], "messages": messages}
    assert (
        http.post("/api/chat", json=body | {"stream": False}).json()["message"]["content"]
        == CHANGED
    )
    says = f"outer(inner({SAYS[2:]}))"  # the model continues what the transforms have added
    ids = byte_tokenizer(TEMPLATE).encode(ASSISTANT)
    body = {"prompt": ASSISTANT, "max_tokens": 20}
    for prompt in (ASSISTANT, ids):
        said = http.post("/v1/completions", json=body | {"prompt": prompt}).json()
        assert "choices" in said, (prompt, said)
        assert said["choices"][0]["text"] == says
    streamed = events(http.post("/v1/completions", json=body | {"stream": True}))
    assert "".join(one["choices"][0]["text"] for one in streamed) == says


def test_streams_of_all_apis_are_changed(wrapped: Any) -> None:
    http, _ = wrapped
    body = {"max_tokens": 20, "messages": [{"role": "user", "content": "x"}], "stream": True}
    model = ask(http).json()["model"]
    found = events(http.post("/v1/messages", json=body | {"model": model}))
    texts = [one["delta"].get("text", "") for one in found if one["type"] == "content_block_delta"]
    assert "".join(texts) == CHANGED
    found = events(http.post("/v1/responses", json={"input": "x", "stream": True}))
    texts = [one["delta"] for one in found if one["type"] == "response.output_text.delta"]
    assert "".join(texts) == CHANGED


def test_a_failure_in_a_stream_is_an_event(wrapped: Any) -> None:
    http, model = wrapped
    model.says = "crash"
    found = events(ask(http, stream=True))
    assert "'wrap'" in found[-1]["error"]["message"]
    assert ask(http, "forbidden", stream=True).status_code == 400


def test_it_may_refuse_and_its_failure_ends_only_its_request(wrapped: Any) -> None:
    http, model = wrapped
    refused = ask(http, "forbidden")
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "no such words"
    assert refused.json()["error"]["param"] == "messages"
    assert ask(http, "broken").status_code == 500
    model.says = "crash"
    assert ask(http).status_code == 500
    assert "'wrap'" in ask(http).json()["error"]["message"]
    model.says = SAYS
    assert ask(http).status_code == 200
    metrics = http.get("/metrics").text
    failures = [line for line in metrics.splitlines() if "hook_failures" in line and "wrap" in line]
    assert (failures and failures[0].endswith(" 3.0")) or failures[0].endswith(" 3"), failures
