"""Refusals that are cheap for the server, name the field, and repeat little of what was sent."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tokenmill.testing.toy_tokenizer import ToyTokenizer

from .serving import Served
from .test_errors import MESSAGES, chat, check_error, complete


def test_a_slash_too_many_is_404_and_not_a_redirect_to_the_host_header(http: httpx.Client) -> None:
    headers = {"Host": "evil.localhost"}
    check_error(http.get("/health/", headers=headers), 404)
    check_error(http.post("/v1/completions/", headers=headers, json={"prompt": "a"}), 404)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/completions", "prompt"),
        ("/v1/chat/completions", "messages"),
        ("/detokenize", "tokens"),
    ],
)
def test_a_missing_field_is_named(http: httpx.Client, path: str, field: str) -> None:
    check_error(http.post(path, json={}), 400, field)


def test_an_error_repeats_little_of_what_was_sent(http: httpx.Client) -> None:
    response = complete(http, model="x" * 1_000_000)
    check_error(response, 400)
    assert len(response.content) < 1000


@pytest.mark.parametrize(
    ("field", "value"),
    [("audio", {}), ("prediction", {}), ("web_search_options", {}), ("moderation", {}),
     ("function_call", {"name": "f"}), ("service_tier", "priority"),
     ("logit_bias", {"1_0": 1}), ("logit_bias", {" 5": 1}), ("logit_bias", {"05": 1})],
)  # fmt: skip
def test_chat_refuses_by_name_what_it_would_ignore(
    http: httpx.Client, field: str, value: Any
) -> None:
    check_error(chat(http, **{field: value}), 400, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [("function_call", "none"), ("function_call", "auto"), ("service_tier", "auto"),
     ("service_tier", "default"), ("prompt_cache_key", "k"), ("safety_identifier", "s"),
     ("prompt_cache_retention", "24h")],
)  # fmt: skip
def test_chat_takes_what_changes_nothing(http: httpx.Client, field: str, value: Any) -> None:
    assert chat(http, **{field: value}).status_code == 200


def test_what_cannot_fit_is_refused_before_it_is_tokenized(
    toy: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> list[int]:
        raise AssertionError("tokenized")

    monkeypatch.setattr(ToyTokenizer, "encode", fail)
    monkeypatch.setattr(ToyTokenizer, "encode_chat", fail)
    text = "a" * 2_000_000
    check_error(complete(http, prompt=text, add_special_tokens=False), 400, "prompt")
    check_error(http.post("/tokenize", json={"prompt": text}), 400, "prompt")
    check_error(chat(http, messages=[{"role": "user", "content": ""}] * 50_000), 400, "messages")
    check_error(http.post("/tokenize", json={"messages": MESSAGES * 50_000}), 400, "messages")


def test_tokenize_refuses_an_empty_conversation(http: httpx.Client) -> None:
    check_error(http.post("/tokenize", json={"messages": []}), 400, "messages")
