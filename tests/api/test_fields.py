"""Unknown fields are named, known ones are accepted when they change nothing, and errors say what
a field may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tokenmill.api.openai.reading.bodies import ChatBody, CompletionBody

from .serving import serve_engine, toy_engine
from .test_errors import CHAT, COMPLETIONS, MESSAGES, chat, check_error, complete

HEADER = "x-tokenmill-ignored-fields"
ASKS = pytest.mark.parametrize("ask", [complete, chat])


@pytest.fixture(scope="module")
def strict() -> Iterator[httpx.Client]:
    with serve_engine(toy_engine(), strict_fields=True) as served, served.client() as client:
        yield client


@ASKS
@pytest.mark.parametrize("stream", [False, True])
def test_a_header_names_the_fields_that_were_ignored(
    http: httpx.Client, ask: Any, stream: bool
) -> None:
    options = {"stream_options": {"include_useage": True}} if stream else {}
    answer = ask(http, temprature=1, beams=4, stream=stream, **options)
    assert answer.status_code == 200
    names = ["beams", "temprature", *(["stream_options.include_useage"] if stream else [])]
    assert answer.headers[HEADER].split(", ") == names
    assert HEADER not in ask(http).headers


def test_a_message_s_ignored_fields_are_named(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "a", "weight": 1}] * 2
    assert chat(http, messages=messages).headers[HEADER] == "messages[].weight"
    tokenized = http.post("/tokenize", json={"messages": messages})
    assert tokenized.headers[HEADER] == "messages[].weight"


def test_the_names_of_ignored_fields_are_safe_and_few_in_a_header(http: httpx.Client) -> None:
    answer = complete(http, **{"a\r\nSet-Cookie: b": 1})
    assert (
        answer.headers[HEADER] == "a%0D%0ASet-Cookie%3A%20b" and "set-cookie" not in answer.headers
    )
    answer = complete(http, **{f"{i:06}" * 100: 1 for i in range(1000)})
    assert answer.headers[HEADER].endswith("and 992 more") and len(answer.headers[HEADER]) < 1000


@ASKS
def test_strict_fields_refuses_unknown_fields_and_a_missing_model(
    strict: httpx.Client, ask: Any
) -> None:
    assert ask(strict, model="simulated").status_code == 200
    check_error(ask(strict), 400, "model")
    error = check_error(ask(strict, model="simulated", temprature=1), 400, "temprature")
    assert "'temperature'" in error["message"]
    error = check_error(ask(strict, model="simulated", **{"x" * 1_000_000: 1}), 400)
    assert len(error["message"]) < 200
    options = {"stream": True, "stream_options": {"include_useage": True}}
    check_error(ask(strict, model="simulated", **options), 400, "stream_options")


def test_strict_fields_refuses_unknown_fields_of_messages(strict: httpx.Client) -> None:
    messages = [*MESSAGES, {"role": "user", "content": "a", "contnt": "a"}]
    error = check_error(chat(strict, model="simulated", messages=messages), 400, "messages")
    assert "'contnt'" in error["message"]


@pytest.mark.parametrize("kind", (CompletionBody, ChatBody), ids=lambda kind: kind.__name__)
def test_neutral_values_of_fields_that_are_not_supported_change_nothing(
    strict: httpx.Client, kind: type
) -> None:
    ask = chat if kind is ChatBody else complete
    plain = ask(strict, model="simulated", seed=1).json()["choices"]
    fields = kind.UNSUPPORTED
    for given in (
        dict.fromkeys(fields),
        {name: field.neutral[0] for name, field in fields.items() if field.neutral},
        {name: field.neutral[-1] for name, field in fields.items() if field.neutral},
    ):
        answer = ask(strict, model="simulated", seed=1, **given)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"] == plain


@pytest.mark.parametrize("kind", (CompletionBody, ChatBody), ids=lambda kind: kind.__name__)
def test_other_values_of_fields_that_are_not_supported_are_refused_with_a_reason(
    http: httpx.Client, kind: type
) -> None:
    ask = chat if kind is ChatBody else complete
    for name, field in kind.UNSUPPORTED.items():
        for value in ({"type": "other"}, "x" * 1000, [[]] * 1000):
            error = check_error(ask(http, **{name: value}), 400, name)
            assert error["code"] == "unsupported" and field.reason in error["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("use_beam_search", False), ("guided_json", None), ("tools", []), ("length_penalty", 1),
     ("spaces_between_special_tokens", True), ("bad_words", []), ("n", None)],
)  # fmt: skip
def test_what_clients_of_vllm_always_send_is_accepted(
    strict: httpx.Client, name: str, value: Any
) -> None:
    assert chat(strict, model="simulated", **{name: value}).status_code == 200


def test_a_message_s_reasoning_is_accepted(strict: httpx.Client) -> None:
    answer = {"role": "assistant", "content": "a", "reasoning": "b", "refusal": None}
    messages = [*MESSAGES, answer, *MESSAGES]
    assert chat(strict, model="simulated", messages=messages).status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"temperature": "hot"}, "temperature", ("number from 0 to 100", "got a string")),
        ({"temperature": 101}, "temperature", ("number from 0 to 100",)),
        ({"n": 1.5}, "n", ("integer from 1 to 128",)),
        ({"n": 129}, "n", ("integer from 1 to 128",)),
        ({"top_p": 0}, "top_p", ("greater than 0 and at most 1",)),
        ({"seed": 10**400}, "seed", ("integer from -9223372036854775808",)),
        ({"stop": 5}, "stop", ("string or a list of at most 16 items", "got an integer")),
        ({"stop": ["a", None]}, "stop", ("stop[1] must be a string", "got null")),
        ({"stream": "yes"}, "stream", ("true or false", "got a string")),
        ({"logit_bias": {"5": 101}}, "logit_bias", ("number from -100 to 100",)),
        ({"metadata": {"": "a"}}, "metadata", ("a key of metadata", "1 to 64 characters")),
        ({"messages": []}, "messages", ("a list of 1 to 16384 items",)),
        ({"messages": [{}]}, "messages", ("messages[0].role is missing",)),
        ({"messages": [{"role": "user", "content": 5}]}, "messages", ("messages[0].content",)),
        ({"reasoning_effort": "huge"}, "reasoning_effort", ("one of", "'high'")),
        ({"stream_options": 5}, "stream_options", ("an object", "got an integer")),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_an_error_says_what_the_field_may_be(
    http: httpx.Client, body: Any, param: str, words: tuple[str, ...]
) -> None:
    message = check_error(chat(http, **body), 400, param)["message"]
    assert all(word in message for word in words), message
    check_plain(message)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"5", b"\xff", b'{"prompt": "a\xff"}', b'{"prompt": "\\ud800"}',
     b'{"prompt": tru}', b"{}", b'{"prompt": 1e999}', b'{"prompt": "a"} b', b'{"prompt": {}}',
     b'{"prompt": [[1, "a"]]}', b'{"prompt": [true]}', b'{"prompt": [' + b"9" * 5000 + b"]}"],
    ids=lambda raw: repr(raw[:20]),
)  # fmt: skip
def test_an_error_has_no_words_of_the_decoder(http: httpx.Client, raw: bytes) -> None:
    check_plain(check_error(http.post(COMPLETIONS, content=raw), 400)["message"])
    check_plain(check_error(http.post(CHAT, content=raw), 400)["message"])


def check_plain(message: str) -> None:
    """The message has none of msgspec's and Python's words."""
    for word in ("`", "$", "Object", "array", "`int`", "codec", "malformed", "truncated", "[...]."):
        assert word not in message, message
    assert "Expected" not in message and "str" not in message.split(), message
