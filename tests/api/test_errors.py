"""Every error comes in OpenAI's shape, names what is wrong, and says where."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tokenmill.api.http.errors import as_api_error, error_body

from .serving import Served

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def check_error(response: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["type"]
    if param is not None:
        assert error["param"] == param, error
    return error


def complete(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post(COMPLETIONS, json={"prompt": "abc", "max_tokens": 2} | fields)


def chat(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post(CHAT, json={"messages": MESSAGES, "max_tokens": 2} | fields)


def test_an_unexpected_exception_shows_no_details() -> None:
    error = as_api_error(RuntimeError("a path or a key"))
    assert error.status == 500 and "its log says why" in error.message
    assert b"a path" not in error_body(error)


def test_an_unknown_path_is_404_and_a_wrong_method_is_405(http: httpx.Client) -> None:
    message = check_error(http.get("/v1/nothing"), 404)["message"]
    assert message == "there is no GET /v1/nothing here; GET / lists all paths"
    response = http.get(CHAT)
    assert "GET" in check_error(response, 405)["message"]
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a"} trailing',
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "a", "metadata": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": [' + b"9" * 5000 + b"]}",
    ],
    ids=lambda raw: repr(raw[:40]),
)
def test_a_body_that_is_not_valid_is_400(http: httpx.Client, raw: bytes) -> None:
    check_error(http.post(COMPLETIONS, content=raw), 400)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 101),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 2**40),
        ("min_p", 1.5),
        ("n", 0),
        ("n", 129),
        ("n", 2**70),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("min_tokens", 3),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("seed", 2**63),
        ("stop", [""]),
        ("stop", ["a"] * 17),
        ("stop", 5),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [1000]),
        ("stop_token_ids", [2**70]),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"-5": 1}),
        ("logit_bias", {"1000": 1}),
        ("logit_bias", {"five": 1}),
        ("logit_bias", {"9" * 5000: 1}),
        ("stream", "yes"),
        ("user", 5),
        ("cache_salt", ""),
        ("priority", 1),
        ("best_of", 2),
        ("response_format", {"type": "json_object"}),
        ("request_id", ""),
        ("stream_options", {"include_usage": True}),
        ("store", True),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_value_that_is_wrong_is_400_and_names_the_field(
    http: httpx.Client, field: str, value: Any
) -> None:
    for ask in (complete, chat):
        error = check_error(ask(http, **{field: value}), 400)
        assert (error["param"] or "").split(".")[0] == field, error


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        ([], "empty"),
        ("", "empty"),
        ([[]], "empty"),
        (["a", ""], "empty"),
        ([1, "a"], "mixes"),
        ([[1], 2], "mixes"),
        ([-1], "vocabulary"),
        ([1000], "vocabulary"),
        ([[1, 2**70]], "vocabulary"),
        (["a"] * 129, "128"),
        (None, ""),
        ({}, ""),
        ([True], ""),
        ([1.5], ""),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_prompt_that_is_wrong_is_400(http: httpx.Client, prompt: Any, word: str) -> None:
    assert word in check_error(complete(http, prompt=prompt), 400)["message"]


def test_prompts_times_n_are_bounded(http: httpx.Client) -> None:
    error = check_error(complete(http, prompt=["a"] * 2, n=65), 400, "n")
    assert "128" in error["message"]


def test_a_hundred_thousand_prompts_or_a_million_token_ids_are_refused(http: httpx.Client) -> None:
    check_error(complete(http, prompt=["a"] * 100_000), 400)
    check_error(complete(http, prompt=[1] * 1_000_000), 400)
    check_error(complete(http, prompt="a" * 3_000_000), 400, "prompt")


def test_overflow_says_both_numbers(http: httpx.Client) -> None:
    message = check_error(complete(http, max_tokens=2000), 400, "max_tokens")["message"]
    assert "1024" in message and "2003" in message
    message = check_error(complete(http, prompt="a" * 1024), 400, "prompt")["message"]
    assert "1024" in message
    long = [{"role": "user", "content": "a" * 2000}]
    assert "1024" in check_error(chat(http, messages=long), 400, "messages")["message"]


def test_an_unknown_model_is_404(http: httpx.Client) -> None:
    assert "simulated" in check_error(complete(http, model="gpt-5"), 404, "model")["message"]
    check_error(chat(http, model="gpt-5"), 404, "model")
    check_error(http.get("/v1/models/gpt-5"), 404, "model")
    check_error(http.post("/tokenize", json={"prompt": "a", "model": "gpt-5"}), 404, "model")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "two words"}}]),
        ("functions", [{"name": "f"}]),
        ("tool_choice", "required"),
        ("modalities", ["audio"]),
        ("top_logprobs", 3),
        ("reasoning_effort", "enormous"),
        ("verbosity", "high"),
        ("max_completion_tokens", 5),
        ("chat_template_kwargs", {"tokenize": True}),
        ("messages", []),
        ("messages", [{"role": "robot", "content": "a"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}]),
        ("messages", [{"role": "assistant", "content": "a", "tool_calls": [{}]}]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_chat_refuses_what_it_cannot_do(real: Served, field: str, value: Any) -> None:
    with real.client() as http:
        check_error(chat(http, **{field: value}), 400, field)


def test_an_image_for_a_model_that_reads_text_is_refused_with_its_place(real: Served) -> None:
    content = [{"type": "image_url", "image_url": {}}]
    with real.client() as http:
        answer = chat(http, messages=[{"role": "user", "content": content}])
        check_error(answer, 400, "messages[0].content[0]")


def test_completions_refuse_what_they_cannot_do(http: httpx.Client) -> None:
    check_error(complete(http, suffix="end"), 400, "suffix")
    check_error(complete(http, logprobs=21), 400, "logprobs")


def test_null_means_not_given_for_every_field(http: httpx.Client) -> None:
    schemas = http.get("/openapi.json").json()["components"]["schemas"]
    for name, given in (("CompletionBody", {"prompt": "a"}), ("ChatBody", {"messages": MESSAGES})):
        fields = dict.fromkeys(schemas[name]["properties"]) | given | {"max_tokens": 2}
        path = COMPLETIONS if name == "CompletionBody" else CHAT
        response = http.post(path, json=fields)
        assert response.status_code == 200, response.text


def test_a_large_body_is_413_whether_its_length_is_told_or_not(http: httpx.Client) -> None:
    body = json.dumps({"prompt": "a" * (5 << 20)}).encode()
    check_error(http.post(COMPLETIONS, content=body), 413)

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    try:
        response = http.post(COMPLETIONS, content=pieces())
    except httpx.WriteError:
        return  # the server hung up while the rest was being sent
    check_error(response, 413)


def test_a_full_context_has_openai_s_code(http: httpx.Client) -> None:
    long = [{"role": "user", "content": "a" * 1020}]
    answers = [
        complete(http, max_tokens=2000),
        complete(http, prompt="a" * 1024),
        complete(http, prompt=[1] * 1024),
        complete(http, prompt="a" * 2000),
        chat(http, messages=long),
    ]
    assert {check_error(one, 400)["code"] for one in answers} == {"context_length_exceeded"}


def test_a_body_may_begin_with_a_byte_order_mark(http: httpx.Client) -> None:
    answer = http.post(COMPLETIONS, content=b'\xef\xbb\xbf{"prompt": "a", "max_tokens": 1}')
    assert answer.status_code == 200
    check_error(http.post(COMPLETIONS, content=b"\xef\xbb\xbf"), 400)
