"""Whatever a client sends, the answer is never a 500, and nobody else notices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenmill.api.openai.reading.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from tokenmill.testing.simulated.executor import expected_tokens

from .serving import Served
from .test_errors import check_error

GOOD: dict[str, Any] = {"prompt": "abc", "max_tokens": 4, "seed": 1, "temperature": 0}
BODIES = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
VALID: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/tokenize": {"prompt": "abc"},
    "/detokenize": {"tokens": [97]},
}
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 5)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=20)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
EXAMPLES = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def nothing_is_held_afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    served: Served = request.getfixturevalue("real" if "real" in request.fixturenames else "toy")
    yield
    served.wait_idle()


def check_undisturbed(http: httpx.Client) -> None:
    """A good request gets the simulated model's tokens, whatever came before."""
    tokens = expected_tokens(list(map(ord, GOOD["prompt"])), GOOD["max_tokens"], GOOD["seed"], 1000)
    [choice] = http.post("/v1/completions", json=GOOD).json()["choices"]
    assert choice["text"] == "".join(map(chr, tokens))


def check_answer(response: httpx.Response) -> None:
    if response.status_code != 200:
        assert response.status_code in (400, 404), response.text
        check_error(response, response.status_code)


@EXAMPLES
@given(path=st.sampled_from(sorted(BODIES)), value=VALUES)
def test_any_json_is_answered(http: httpx.Client, path: str, value: Any) -> None:
    check_answer(http.post(path, content=json.dumps(value).encode()))


@EXAMPLES
@given(path=st.sampled_from(sorted(BODIES)), raw=st.binary(max_size=60))
def test_any_bytes_are_answered(http: httpx.Client, path: str, raw: bytes) -> None:
    check_answer(http.post(path, content=raw))


@EXAMPLES
@given(data=st.data(), path=st.sampled_from(sorted(BODIES)))
def test_any_value_in_any_field_is_answered_and_disturbs_nobody(
    http: httpx.Client, data: st.DataObject, path: str
) -> None:
    names = st.sampled_from(BODIES[path].__struct_fields__)
    fields = data.draw(st.dictionaries(names, VALUES, min_size=1, max_size=3))
    check_answer(http.post(path, content=json.dumps(VALID[path] | fields).encode()))
    check_undisturbed(http)


MESSAGE = st.dictionaries(
    st.sampled_from(["role", "content", "name", "tool_calls", "tool_call_id", "x"]),
    st.sampled_from(["system", "user", "assistant", "tool", "<|im_end|>", ""])
    | VALUES
    | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=9)})),
)


@settings(EXAMPLES, max_examples=40)
@given(messages=st.lists(MESSAGE, max_size=4), options=st.dictionaries(st.text(max_size=9), VALUES))
def test_any_messages_are_answered_by_a_real_template(
    real: Served, messages: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    body = {"messages": messages, "max_tokens": 1, "chat_template_kwargs": options or None}
    with real.client() as http:
        check_answer(http.post("/v1/chat/completions", content=json.dumps(body).encode()))
