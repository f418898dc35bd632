"""vLLM's fields on tokens: which may be generated, how prompts are cut, how tokens are written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from .serving import Served
from .test_answers import events_of
from .test_errors import CHAT, COMPLETIONS, MESSAGES, chat, check_error, complete

STORY: dict[str, Any] = {
    "prompt": "Once upon a time, there was a",
    "temperature": 0,
    "max_tokens": 10,
}


@pytest.fixture
def model(real: Served) -> Iterator[httpx.Client]:
    with real.client() as client:
        yield client


def tell(model: httpx.Client, path: str = COMPLETIONS, **fields: Any) -> dict[str, Any]:
    response = model.post(path, json=STORY | fields)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def ids_of(model: httpx.Client, text: str) -> list[int]:
    found: list[int] = model.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return found


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.5, "n": 3}])
def test_only_allowed_tokens_are_generated(model: httpx.Client, fields: dict[str, Any]) -> None:
    allowed = ids_of(model, " yes no maybe")
    choice = tell(model, allowed_token_ids=allowed, return_token_ids=True, **fields)
    assert set(choice["token_ids"]) <= set(allowed) and len(choice["token_ids"]) == 10


def test_bad_words_do_not_occur(model: httpx.Client) -> None:
    words: list[str] = []
    for _ in range(3):
        text = tell(model, bad_words=words)["text"]
        assert not {*words} & {*text.split()}
        words.append(next(word for word in text.split() if word.isalpha() and word not in words))
    streamed = events_of(model.post(COMPLETIONS, json=STORY | {"bad_words": words, "stream": True}))
    text = "".join(c["text"] for e in streamed for c in e["choices"])
    assert text == tell(model, bad_words=words)["text"]


def test_a_prompt_is_truncated_on_either_side(model: httpx.Client) -> None:
    ids = ids_of(model, STORY["prompt"])
    for side, kept in (("left", ids[-4:]), ("right", ids[:4])):
        cut = {"truncate_prompt_tokens": 4, "truncation_side": side, "max_tokens": 2}
        choice = tell(model, **cut, return_token_ids=True, echo=True)
        assert choice["prompt_token_ids"] == kept
        assert choice["text"] == tell(model, prompt=kept, echo=True, max_tokens=2)["text"]
    whole = tell(model, truncate_prompt_tokens=1000, return_token_ids=True, max_tokens=1)
    assert whole["prompt_token_ids"] == ids
    body = {"messages": MESSAGES, "truncate_prompt_tokens": 3, "return_token_ids": True}
    answer = model.post(CHAT, json=body | {"max_tokens": 1}).json()
    assert len(answer["prompt_token_ids"]) == 3 == answer["usage"]["prompt_tokens"]


def test_a_prompt_is_truncated_to_the_room_there_is(http: httpx.Client) -> None:
    room = http.get("/v1/models").json()["data"][0]["max_model_len"]
    fields = {"truncate_prompt_tokens": -1, "return_token_ids": True}
    for prompt in ([5] * (room + 9), "a" * room):
        long = tell(http, prompt=prompt, **fields)
        assert len(long["prompt_token_ids"]) == room - 10 and long["finish_reason"] == "length"


def test_tokens_are_written_as_ids(model: httpx.Client) -> None:
    fields = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    choice = tell(model, logprobs=1, **fields)
    names = [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names
    assert all(name in top for name, top in zip(names, choice["logprobs"]["top_logprobs"],
                                                 strict=True))  # fmt: skip
    choice = tell(model, CHAT, messages=MESSAGES, logprobs=True, top_logprobs=1, **fields)
    content = choice["logprobs"]["content"]
    assert [one["token"] for one in content] == [f"token_id:{i}" for i in choice["token_ids"]]
    assert [one["top_logprobs"][0]["token"] for one in content] == [one["token"] for one in content]
    text = b"".join(bytes(one["bytes"]) for one in content)  # a stop token is not in the content
    assert text.startswith(choice["message"]["content"].encode())


def test_named_tokens_have_logprobs(model: httpx.Client) -> None:
    ids = ids_of(model, " girl boy")
    choice = tell(model, logprobs=0, logprob_token_ids=ids, return_tokens_as_token_ids=True)
    for name, top in zip(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"],
                         strict=True):  # fmt: skip
        assert set(top) == {name, *(f"token_id:{i}" for i in ids)}


@pytest.mark.parametrize("interval", [1, 4, 1000])
def test_a_stream_sends_a_chunk_per_interval(http: httpx.Client, interval: int) -> None:
    body = {"prompt": "abc", "max_tokens": 10, "seed": 1, "return_token_ids": True}
    plain = http.post(COMPLETIONS, json=body).json()["choices"][0]
    events = events_of(
        http.post(COMPLETIONS, json=body | {"stream": True, "stream_interval": interval})
    )
    parts = [c["token_ids"] for e in events for c in e["choices"]]
    assert [token_id for part in parts for token_id in part] == plain["token_ids"]
    # A slow reader gets more at once, but never less; the end comes when it comes.
    assert all(len(part) >= interval for part in parts[1:-1])
    assert len(parts) <= 1 + -(-9 // interval)


@pytest.mark.parametrize("ask", [complete, chat])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allowed_token_ids", []),
        ("allowed_token_ids", [10**6]),
        ("allowed_token_ids", [-1]),
        ("bad_words", [""]),
        ("bad_words", [" "]),
        ("bad_words", ["a"] * 129),
        ("logprob_token_ids", [1]),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("truncation_side", "middle"),
        ("stream_interval", 0),
    ],
)
def test_wrong_values_are_refused(http: httpx.Client, ask: Any, field: str, value: Any) -> None:
    check_error(ask(http, **{field: value}), 400, field)
