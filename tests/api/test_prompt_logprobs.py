"""Log-probabilities of prompts: echo with logprobs, max_tokens 0, and vLLM's prompt_logprobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from .serving import Served
from .test_answers import events_of
from .test_errors import CHAT, COMPLETIONS, chat, check_error, complete

PROMPT = "The capital of France is Paris, a café."
ASK: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": 3}


@pytest.fixture
def model(real: Served) -> Iterator[httpx.Client]:
    with real.client() as client:
        yield client


def answer(model: httpx.Client, path: str = COMPLETIONS, **fields: Any) -> dict[str, Any]:
    response = model.post(path, json=ASK | fields)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_echo_with_logprobs_scores_prompt_and_answer(model: httpx.Client) -> None:
    ids = model.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    plain = answer(model, logprobs=2)["choices"][0]
    choice = answer(model, echo=True, logprobs=2)["choices"][0]
    assert choice["text"] == PROMPT + plain["text"]
    found, after = choice["logprobs"], len(ids)
    assert len(found["tokens"]) == after + 3
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    assert all(value <= 0 for value in found["token_logprobs"][1:])
    for name, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(name)
    for name, value, top in zip(*(found[key][1:] for key in TRIPLE), strict=True):
        assert top[name] == value and 2 <= len(top) <= 3
    assert found["tokens"][after:] == plain["logprobs"]["tokens"]
    assert found["token_logprobs"][after:] == pytest.approx(
        plain["logprobs"]["token_logprobs"], abs=1e-3
    )


TRIPLE = ("tokens", "token_logprobs", "top_logprobs")


def test_a_log_likelihood_does_not_depend_on_how_it_is_asked_for(model: httpx.Client) -> None:
    """lm-eval reads the tokens between the context and the last one."""
    ids = model.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    whole = answer(model, echo=True, logprobs=1, max_tokens=1)["choices"][0]["logprobs"]
    expected = whole["token_logprobs"][1:-1]
    scored = answer(model, prompt=ids, echo=True, logprobs=1, max_tokens=0)
    assert scored["usage"]["completion_tokens"] == 0
    choice = scored["choices"][0]
    assert choice["text"] == PROMPT and choice["finish_reason"] == "length"
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(expected, abs=1e-3)
    by_id = answer(model, prompt_logprobs=0)["choices"][0]["prompt_logprobs"]
    assert by_id[0] is None and [list(one) for one in by_id[1:]] == [[str(i)] for i in ids[1:]]
    values = [one[str(i)]["logprob"] for one, i in zip(by_id[1:], ids[1:], strict=True)]
    assert values == pytest.approx(expected, abs=1e-3)
    greedy = [max(top, key=top.__getitem__) == name for name, top in zip(
        whole["tokens"][1:-1], whole["top_logprobs"][1:-1], strict=True)]  # fmt: skip
    assert greedy == [one[str(i)]["rank"] == 1 for one, i in zip(by_id[1:], ids[1:], strict=True)]


def test_a_stream_and_every_choice_have_the_prompt_s_logprobs(model: httpx.Client) -> None:
    fields: dict[str, Any] = {"echo": True, "logprobs": 1, "n": 2, "prompt": [PROMPT, "One two"]}
    choices = answer(model, **fields)["choices"]
    assert [c["text"][: len(PROMPT)] == PROMPT for c in choices] == [True, True, False, False]
    events = events_of(model.post(COMPLETIONS, json=ASK | fields | {"stream": True}))
    for choice in choices:
        parts = [c for e in events for c in e["choices"] if c["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        for key in ("tokens", "text_offset"):
            streamed = [one for part in parts if part["logprobs"] for one in part["logprobs"][key]]
            assert streamed == choice["logprobs"][key]


def test_chat_has_prompt_logprobs_beside_its_choices(model: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    found = answer(model, CHAT, messages=messages, prompt_logprobs=1, return_token_ids=True)
    scores, ids = found["prompt_logprobs"], found["prompt_token_ids"]
    assert len(scores) == len(ids) and scores[0] is None
    for token_id, one in zip(ids[1:], scores[1:], strict=True):
        own = one[str(token_id)]
        assert own["rank"] >= 1 and own["logprob"] <= 0
        assert min(entry["rank"] for entry in one.values()) == 1
    empty = answer(model, CHAT, messages=messages, max_tokens=None, max_completion_tokens=0)
    assert empty["choices"][0]["message"]["content"] == ""
    assert empty["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("ask", [complete, chat])
def test_prompt_logprobs_are_refused_where_they_cannot_be(http: httpx.Client, ask: Any) -> None:
    check_error(ask(http, prompt_logprobs=1, stream=True), 400, "prompt_logprobs")
    check_error(ask(http, prompt_logprobs=21), 400, "prompt_logprobs")
    error = check_error(ask(http, prompt_logprobs=-1), 400, "prompt_logprobs")
    assert "from 0 to 1000" in error["message"]
