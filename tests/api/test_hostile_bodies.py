"""Bodies made to cost much: each is refused or served cheaply, and holds up nobody else."""

from __future__ import annotations

import gc
import json
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tokenmill.api.http import body_budget
from tokenmill.testing.toy_tokenizer import ToyTokenizer

from .serving import Served, serve_engine, toy_engine
from .test_errors import check_error

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
ASK: dict[str, Any] = {"prompt": "abc", "max_tokens": 2}
SAY: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
LIMITS = ("1024", "16384", "1048576", "context length")
LISTS = "[" + ",".join(["[]"] * 1_300_000) + "]"


def with_text(body: dict[str, Any], name: str, text: str) -> bytes:
    """The body with one more field, whose value is JSON text already."""
    return f"{json.dumps(body)[:-1]}, {json.dumps(name)}: {text}}}".encode()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, with_text(SAY, "prompt_cache_options", f'{{"a": {LISTS}}}'), 200),
        (COMPLETIONS, with_text({"max_tokens": 2}, "prompt", LISTS), 400),
        (CHAT, with_text(SAY, "tools", LISTS), 400),
    ],
    ids=["an ignored field", "prompts", "tools"],
)
def test_a_million_lists_do_not_start_thousands_of_garbage_collections(
    http: httpx.Client, path: str, body: bytes, status: int
) -> None:
    collections: list[str] = []

    def count(phase: str, info: dict[str, int]) -> None:
        collections.append(phase)

    gc.callbacks.append(count)
    try:
        assert http.post(path, content=body, headers=JSON).status_code == status
    finally:
        gc.callbacks.remove(count)
    assert len(collections) < 400, "1.3 million objects are 1,900 collections and more"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, ASK | {"stop_token_ids": [11] * 1025}, "stop_token_ids"),
        (COMPLETIONS, ASK | {"logit_bias": {f"{i}": 1 for i in range(10_000)}}, "logit_bias"),
        (COMPLETIONS, {"prompt": [1] * (2**20 + 1)}, "prompt"),
        (CHAT, {"messages": SAY["messages"] * (2**14 + 1)}, "messages"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 1025}]},
            "messages",
        ),
        ("/detokenize", {"tokens": [97] * (2**20 + 1)}, "tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_list_that_is_too_long_is_refused_by_its_length(
    http: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    content = json.dumps(body, separators=(",", ":"))
    error = check_error(http.post(path, content=content, headers=JSON), 400)
    assert error["param"] == param
    assert any(limit in error["message"] for limit in LIMITS)


def test_more_unknown_fields_than_can_be_listed_are_refused(http: httpx.Client) -> None:
    body = ASK | {f"unknown{n}": 1 for n in range(40_000)}
    error = check_error(http.post(COMPLETIONS, json=body), 400)
    assert "too many unknown or repeated fields" in error["message"]


def test_a_body_nested_a_million_times_is_refused(http: httpx.Client) -> None:
    for opened, closed in ("[", "]"), ('{"a":', "}"):
        deep = opened * 600_000 + "0" + closed * 600_000
        for path, name in ((CHAT, "tools"), (CHAT, "prompt_cache_options"), (COMPLETIONS, "x")):
            body = with_text(SAY if path == CHAT else ASK, name, deep)
            check_error(http.post(path, content=body, headers=JSON), 400)


def test_many_texts_are_tokenized_outside_the_event_loop() -> None:
    names: list[str] = []

    class Noting(ToyTokenizer):
        def encode(self, text: str, **options: Any) -> list[int]:
            names.append(threading.current_thread().name)
            return super().encode(text, **options)

    with serve_engine(toy_engine(tokenizer=Noting(), max_num_queued_reqs=1000)) as served:
        with served.client() as http:
            body = {"prompt": ["a" * 200] * 100, "max_tokens": 1}
            assert http.post(COMPLETIONS, json=body).status_code == 200
        served.wait_idle()
    assert len(names) == 100
    assert "served" not in names


def half_a_body(served: Served, num_bytes: int) -> socket.socket:
    target = urlsplit(served.url)
    sock = socket.create_connection((target.hostname or "", target.port or 0), timeout=60)
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {num_bytes}\r\n\r\n"
    )
    sock.sendall(head.encode() + b"{" + b" " * (num_bytes - 2))
    return sock


def test_bodies_that_together_are_too_large_are_refused_with_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body_budget, "BODIES_BYTES", 0)
    with serve_engine(toy_engine(), max_body_bytes=100_000) as served:  # 400 kB for all
        socks = [half_a_body(served, 100_000) for _ in range(6)]
        answers = []
        with served.client() as http:
            assert http.post(COMPLETIONS, json=ASK).status_code == 200, "it is short"
        for sock in reversed(socks):  # the last ones are refused before their last byte
            with sock:
                sock.sendall(b"}")
                answers.append(sock.recv(12))
        assert answers.count(b"HTTP/1.1 503") >= 1
        assert answers.count(b"HTTP/1.1 400") >= 3, "an object without a prompt"
        with served.client() as http:
            assert http.post(COMPLETIONS, json=ASK).status_code == 200
