"""The length of answers without `max_tokens`: the default, or all the room in the context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError

from .serving import serve_engine, toy_engine
from .test_errors import CHAT, COMPLETIONS, MESSAGES

LENGTH = 24


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    engine = toy_engine(
        max_model_len=100, override_generation_config=f'{{"max_new_tokens": {LENGTH}}}'
    )
    with serve_engine(engine) as served, served.client() as client:
        yield client


def length(http: httpx.Client, path: str = CHAT, **fields: Any) -> int:
    body = {"ignore_eos": True} | fields
    body |= {"prompt": "a"} if path == COMPLETIONS else {"messages": MESSAGES} | fields
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    found: int = response.json()["usage"]["completion_tokens"]
    return found


def test_answers_without_max_tokens_have_the_default_length(http: httpx.Client) -> None:
    assert length(http) == length(http, COMPLETIONS) == LENGTH
    assert length(http, max_tokens=30) == length(http, max_completion_tokens=30) == 30
    assert length(http, min_tokens=LENGTH + 1) == LENGTH + 1


def test_the_default_is_less_where_the_context_has_less_room(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "a" * 60}]
    assert 0 < length(http, messages=messages) < LENGTH


def test_without_a_default_a_chat_may_fill_the_context() -> None:
    with serve_engine(toy_engine(max_model_len=100)) as served, served.client() as http:
        assert length(http) > LENGTH


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ('{"max_new_tokens": -1}', "max_tokens"),
        ({"top_p": 2}, "top_p"),
        ({"max_tokns": 2}, "unknown name 'max_tokns'. Did you mean 'max_tokens'"),
        ("[1]", "must be a JSON object"),
        ("{", "must be a JSON object"),
    ],
)
def test_defaults_that_are_not_valid_are_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match="--override-generation-config") as refused:
        EngineConfig(override_generation_config=given)
    assert words in str(refused.value)
