"""A streamed chunk has one choice, and usage exactly where the client asks for it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from .serving import Served
from .test_answers import ASK, SEED, events_of, text_of
from .test_errors import MESSAGES, chat

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": ASK | {"stream": True},
    "/v1/chat/completions": {
        "messages": MESSAGES, "max_tokens": 6, "seed": SEED, "stream": True,
    },
}  # fmt: skip
OVER_BOTH = pytest.mark.parametrize("path", sorted(ROUTES))


def ask(http: httpx.Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    return events_of(http.post(path, json=ROUTES[path] | fields))


@OVER_BOTH
def test_a_chunk_has_one_choice_whatever_n_is(http: httpx.Client, path: str) -> None:
    events = ask(http, path, n=3)
    assert [len(event["choices"]) for event in events] == [1] * len(events)
    ends = [c["index"] for e in events for c in e["choices"] if c["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]


def test_a_client_that_reads_the_first_choice_only_loses_nothing(http: httpx.Client) -> None:
    events = ask(http, "/v1/completions", prompt=["abc", "de"], n=2)
    first = [event | {"choices": event["choices"][:1]} for event in events]
    whole = http.post("/v1/completions", json=ASK | {"prompt": ["abc", "de"], "n": 2}).json()
    assert [text_of(first, i) for i in range(4)] == [c["text"] for c in whole["choices"]]


@OVER_BOTH
@pytest.mark.parametrize("running", [None, False, True])
def test_include_usage_false_sends_no_usage(
    http: httpx.Client, path: str, running: bool | None
) -> None:
    options = {"include_usage": False, "continuous_usage_stats": running}
    events = ask(http, path, stream_options=options)
    assert events and not any("usage" in event for event in events)


@OVER_BOTH
def test_continuous_usage_is_in_every_chunk(http: httpx.Client, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = ask(http, path, n=2, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 12
    assert events[-1]["choices"] == []
    if "chat" in path:
        assert events[0]["choices"][0]["delta"]["role"] == "assistant"
        assert counts[0] == 0 < events[0]["usage"]["prompt_tokens"]


def test_chat_with_token_ids_has_the_prompt_s(http: httpx.Client) -> None:
    expected = [ord(character) for character in "user: hi\nassistant: "]
    assert chat(http, return_token_ids=True).json()["prompt_token_ids"] == expected
    first, *rest = ask(http, "/v1/chat/completions", n=2, return_token_ids=True)
    assert first["prompt_token_ids"] == expected
    assert not any("prompt_token_ids" in event for event in rest)
    assert "prompt_token_ids" not in chat(http).json()


def test_no_logprobs_beyond_the_sampled_token_s_if_zero_are_asked_for(real: Served) -> None:
    body = {"prompt": "Paris is the", "max_tokens": 3, "temperature": 0, "logprobs": 0}
    with real.client() as http:
        found = http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
        assert len(found["tokens"]) == 3
        pairs = zip(found["tokens"], found["token_logprobs"], strict=True)
        assert found["top_logprobs"] == [{token: value} for token, value in pairs]
        answer = chat(http, logprobs=True, top_logprobs=0).json()["choices"][0]
        assert [c["top_logprobs"] for c in answer["logprobs"]["content"]] == [[], []]
        assert all(c["logprob"] <= 0 for c in answer["logprobs"]["content"])


def test_the_sampled_token_is_among_the_most_likely_ones_even_if_it_is_unlikely(
    real: Served,
) -> None:
    body = {"prompt": "Paris is the", "max_tokens": 12, "temperature": 2, "seed": 3, "logprobs": 1}
    with real.client() as http:
        found = http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    assert max(map(len, found["top_logprobs"])) == 2
    for token, value, top in zip(
        found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
    ):
        assert top[token] == value


def test_a_client_that_splits_lines_as_python_does_gets_whole_events(http: httpx.Client) -> None:
    prompt = "a\x85b\u2028c\u2029d"
    body = ASK | {"prompt": prompt, "echo": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    assert "".join(c["choices"][0]["text"] for c in chunks).startswith(prompt)
