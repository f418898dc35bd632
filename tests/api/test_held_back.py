"""What a stream leaves out, the answer lacks, too: token ids, offsets, partial characters."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from .serving import Served

SNOWMAN = "\u2603"


def choices_of(response: httpx.Response) -> list[dict[str, Any]]:
    """All choices of all chunks."""
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    return [choice for line in lines for choice in json.loads(line[6:])["choices"]]


def ask_for(path: str) -> dict[str, Any]:
    if path == "/v1/completions":
        return {"prompt": "abc"}
    return {"messages": [{"role": "user", "content": "abc"}]}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_has_all_token_ids_though_their_text_is_held_back(
    http: httpx.Client, path: str
) -> None:
    ask = ask_for(path) | {"max_tokens": 60, "seed": 3, "return_token_ids": True}
    plain = http.post(path, json=ask).json()["choices"][0]
    text = plain["text"] if "text" in plain else plain["message"]["content"]
    # beginnings of stop strings that never end
    ask["stop"] = [text[i : i + 2] + SNOWMAN for i in range(0, 32, 2)]
    whole = http.post(path, json=ask).json()["choices"][0]
    streamed = choices_of(http.post(path, json=ask | {"stream": True}))
    assert [i for c in streamed for i in c.get("token_ids", [])] == whole["token_ids"]
    assert [i for c in streamed for i in c.get("prompt_token_ids", [])] == whole.get(
        "prompt_token_ids", []
    )


def test_text_offsets_are_the_same_streamed_with_stop_strings(real: Served) -> None:
    ask: dict[str, Any] = {"prompt": "1, 2, 3, 4,", "max_tokens": 24, "temperature": 0}
    with real.client() as http:
        text = http.post("/v1/completions", json=ask).json()["choices"][0]["text"]
        ask |= {"logprobs": 2, "stop": [text[i : i + 4] + SNOWMAN for i in range(2, 20, 4)]}
        whole = http.post("/v1/completions", json=ask).json()["choices"][0]["logprobs"]
        streamed = choices_of(http.post("/v1/completions", json=ask | {"stream": True}))
    lists = [c["logprobs"] for c in streamed if c["logprobs"]]
    assert [i for found in lists for i in found["text_offset"]] == whole["text_offset"]


def test_parts_of_characters_keep_their_own_logprobs(real: Served) -> None:
    ask = {"prompt": "🦄" * 9, "max_tokens": 16, "temperature": 0, "logprobs": 10}
    with real.client() as http:
        choice = http.post("/v1/completions", json=ask).json()["choices"][0]
    found = choice["logprobs"]
    assert any(token.startswith("bytes:\\x") for token in found["tokens"])
    for token, logprob, top in zip(
        found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
    ):
        assert len(top) == 10
        assert top[token] == logprob == max(top.values())
    starts = [i for i, t in zip(found["text_offset"], found["tokens"], strict=True) if t == "🦄"]
    assert all(choice["text"][i] == "🦄" for i in starts)


def test_a_request_id_comes_back_with_answers_and_errors(http: httpx.Client) -> None:
    headers = {"X-Request-Id": "abc-1"}
    good = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=headers)
    bad = http.post("/v1/completions", json={}, headers=headers)
    assert (good.status_code, bad.status_code) == (200, 400)
    assert good.headers["x-request-id"] == bad.headers["x-request-id"] == "abc-1"
