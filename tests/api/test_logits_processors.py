"""Logits processors: requests use them by `vllm_xargs`, alone, with drafts, and when they fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import pytest
import torch

from tokenmill.assembly import AsyncEngine
from tokenmill.compute import ProcessedRow, ProcessorSpec
from tokenmill.core import kinds
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.registry import Registry

from ..oracle.tiny_smolvlm import write_model
from .serving import Served, serve_engine
from .test_answers import events_of
from .test_errors import CHAT, COMPLETIONS, MESSAGES, check_error

STORY: dict[str, Any] = {
    "prompt": "One two three one two three one two three one two",
    "temperature": 0,
    "max_tokens": 14,
    "return_token_ids": True,
}


class Moody:
    """Raises an exception where the client wants it, and counts the rows of each call."""

    arguments = ("mood",)
    example: Mapping[str, Any] = {"mood": "calm"}
    allows_drafts = False
    always = False
    calls: Sequence[int] = ()

    @classmethod
    def reasons_against(cls, spec: ProcessorSpec) -> list[str]:
        return []

    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        if arguments["mood"] == "broken":
            raise ZeroDivisionError
        if arguments["mood"] == "leaving":
            sys.exit("planted")
        if arguments["mood"] not in ("calm", "angry", "silent"):
            raise ValueError("mood must be calm, angry or silent")

    def __init__(self, spec: ProcessorSpec) -> None:
        Moody.calls = ()

    def begin(self, arguments: Mapping[str, Any]) -> str:
        return str(arguments["mood"])

    def apply(self, logits_gv: torch.Tensor, rows: Sequence[ProcessedRow]) -> None:
        Moody.calls = (*Moody.calls, len(rows))
        for logits_v, row in zip(logits_gv, rows, strict=True):
            is_late = len(row.token_ids) > row.num_prompt_tokens + 2
            if row.state == "angry" and is_late:
                raise RuntimeError("planted")
            logits_v[:] = -torch.inf if row.state == "silent" and is_late else logits_v


class Dictated:
    """Makes the answer begin with a text that the client gives."""

    arguments = ("dictated",)
    example: Mapping[str, Any] = {"dictated": "a"}
    allows_drafts = True
    always = False

    @classmethod
    def reasons_against(cls, spec: ProcessorSpec) -> list[str]:
        return []

    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        pass

    def __init__(self, spec: ProcessorSpec) -> None:
        self._tokenizer = spec.tokenizer

    def begin(self, arguments: Mapping[str, Any]) -> list[int]:
        return self._tokenizer.encode(arguments["dictated"], add_special_tokens=False)

    def apply(self, logits_gv: torch.Tensor, rows: Sequence[ProcessedRow]) -> None:
        for logits_v, row in zip(logits_gv, rows, strict=True):
            place = len(row.token_ids) - row.num_prompt_tokens
            if place < len(row.state):
                logits_v[row.state[place]] = 1000.0


class Moods:
    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(kinds.LOGITS_PROCESSOR, "dictated", lambda: Dictated)
        registry.offer(kinds.LOGITS_PROCESSOR, "moody", lambda: Moody)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_engine(drafting_engine(enable_prefix_caching=False)) as served:
        yield served


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model that repeats itself. In float32, drafts change no token of its answers."""
    return str(write_model(tmp_path_factory.mktemp("tiny"), seed=161))


@pytest.fixture(scope="module")
def drafting(tiny: str) -> Iterator[httpx.Client]:
    with (
        serve_engine(drafting_engine(tiny, dtype="float32")) as served,
        served.client() as client,
    ):
        yield client


@pytest.fixture(scope="module")
def exact(tiny: str) -> Iterator[Served]:
    """The same model without drafts."""
    options: dict[str, Any] = {"num_gpu_blocks_override": 128, "disable_log_stats": True}
    with serve_engine(AsyncEngine(tiny, dtype="float32", **options)) as served:
        yield served


def drafting_engine(model: str | None = None, **options: Any) -> AsyncEngine:
    """Drafts are looked up in the prompt, which repeats itself."""
    return AsyncEngine(
        model,
        plugins=[Moods()],
        reasoning_parser="think",
        num_gpu_blocks_override=128,
        disable_log_stats=True,
        speculative_method="ngram",
        num_speculative_tokens=3,
        speculative_adaptive=False,
        **options,
    )


def tell(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = http.post(COMPLETIONS, json=STORY | fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def ngrams(ids: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]


def test_no_ngram_comes_twice_and_drafts_change_no_token(
    drafting: httpx.Client, exact: Served
) -> None:
    plain = tell(drafting)
    assert len(set(ngrams(plain["choices"][0]["token_ids"], 3))) < 12, "the model repeats itself"
    answer = tell(drafting, vllm_xargs={"ngram_size": 3, "window_size": 500}, n=2)
    assert plain["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    for choice in answer["choices"]:
        assert len(set(ngrams(choice["token_ids"], 3))) == 12
    with exact.client() as undrafted:
        expected = tell(undrafted, vllm_xargs={"ngram_size": 3, "window_size": 500})
    assert answer["choices"][1]["token_ids"] == expected["choices"][0]["token_ids"]
    exempt = plain["choices"][0]["token_ids"]
    wish = {"ngram_size": 3, "whitelist_token_ids": exempt}
    assert tell(drafting, vllm_xargs=wish)["choices"][0]["token_ids"] == exempt


def test_a_processor_knows_the_tokens_of_a_text(http: httpx.Client) -> None:
    text = " Grüße from Trondheim!"
    assert tell(http, vllm_xargs={"dictated": text})["choices"][0]["text"].startswith(text)


def test_reasoning_ends_after_its_budget_and_drafts_change_no_token(
    drafting: httpx.Client, exact: Served
) -> None:
    end = drafting.post("/tokenize", json={"prompt": "</think>"}).json()["tokens"]
    limit = {"max_tokens": 4, "start": [1], "end": end, "is_open": True}
    with exact.client() as undrafted:
        free, drafted = (
            tell(one, vllm_xargs={"thinking_budget": limit})["choices"][0]["token_ids"]
            for one in (undrafted, drafting)
        )
        plain = tell(undrafted)["choices"][0]["token_ids"]
        body = THINKING | {"model": exact.engine.model_name, "stream": False}
        check_error(undrafted.post(CHAT, json=body), 400, "thinking_token_budget")
        claude = {"model": body["model"], "max_tokens": 2, "messages": THINKING["messages"][:1]}
        claude["thinking"] = {"type": "enabled", "budget_tokens": 1}
        assert undrafted.post("/v1/messages", json=claude).status_code == 200
    assert free == drafted
    assert free[:4] == plain[:4] and free[4 : 4 + len(end)] == end
    answer = drafting.post(CHAT, json=THINKING).json()
    message = answer["choices"][0]["message"]
    assert message["reasoning"] and "think" not in message["content"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 4
    claude["thinking"]["budget_tokens"] = -1
    refused = drafting.post("/v1/messages", json=claude)
    assert refused.status_code == 400 and "thinking.budget_tokens" in refused.text


THINKING: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "One two three?"},
        {"role": "assistant", "content": "<think>\n"},
    ],
    "continue_final_message": True,
    "add_generation_prompt": False,
    "thinking_token_budget": 4,
    "temperature": 0,
    "max_tokens": 16,
}


def test_a_processor_without_drafts_gets_none_and_is_called_once_a_step(
    http: httpx.Client,
) -> None:
    plain = tell(http)["choices"][0]["token_ids"]
    answer = tell(http, vllm_xargs={"mood": "calm"})
    assert answer["choices"][0]["token_ids"] == plain
    assert "completion_tokens_details" not in answer["usage"]
    assert set(Moody.calls[-14:]) == {1}
    seen = len(Moody.calls)
    tell(http)
    assert len(Moody.calls) == seen, "a step without such requests does not call it"


@pytest.mark.parametrize("mood", ["angry", "silent"])
def test_only_the_request_for_which_a_processor_fails_ends(http: httpx.Client, mood: str) -> None:
    plain = tell(http)["choices"][0]["token_ids"]
    stream = STORY | {"stream": True, "vllm_xargs": {"mood": mood}}
    with http.stream("POST", COMPLETIONS, json=stream) as failing:
        lines = failing.iter_lines()
        next(lines)
        assert tell(http, vllm_xargs={"mood": "calm"})["choices"][0]["token_ids"] == plain
        rest = "\n".join(lines)
    assert "the logits processor 'moody' failed for this request" in rest
    assert rest.endswith("[DONE]\n") and '"finish_reason":"' not in rest
    before = _apply_stats(http)
    error = check_error(http.post(COMPLETIONS, json=STORY | {"vllm_xargs": {"mood": mood}}), 500)
    assert error["code"] == "request_failed"
    after = _apply_stats(http)
    # A failure may count twice: the next step may be running already, and fails in the same way.
    assert after["failures"] > before["failures"] and after["calls"] > before["calls"]


def _apply_stats(http: httpx.Client) -> dict[str, Any]:
    hooks: list[dict[str, Any]] = http.get("/plugins").json()["hooks"]
    return next(hook for hook in hooks if hook["hook"] == "apply" and "ood" in hook["plugin"])


def test_a_request_that_is_left_without_a_token_fails(http: httpx.Client) -> None:
    """Each of two allowed tokens may come once."""
    wish = {"allowed_token_ids": [400, 500], "vllm_xargs": {"ngram_size": 1}}
    two = tell(http, **wish, max_tokens=2)["choices"][0]["token_ids"]
    assert sorted(two) == [400, 500]
    error = check_error(http.post(COMPLETIONS, json=STORY | wish | {"max_tokens": 3}), 500)
    assert "leave no token" in error["message"]


def test_chat_and_streams_use_them(http: httpx.Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    body |= {"vllm_xargs": {"ngram_size": 1}}
    whole = http.post(CHAT, json=body).json()["choices"][0]["token_ids"]
    assert len(set(whole)) == len(whole) == 8
    events = events_of(http.post(CHAT, json=body | {"stream": True}))
    assert [i for e in events for c in e["choices"] for i in c.get("token_ids", ())] == whole


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ngramsize": 3}, "Did you mean 'ngram_size'"),
        ({"ngram_size": 0}, "ngram_size must be an integer from 1 to 4096"),
        ({"window_size": 9}, "ngram_size must be"),
        ({"mood": "sad"}, "example: {'mood': 'calm'}"),
        ({"mood": "x" * 20_000}, "at most 16384 bytes"),
    ],
)
def test_wrong_arguments_are_refused(http: httpx.Client, given: dict[str, Any], words: str) -> None:
    error = check_error(http.post(COMPLETIONS, json=STORY | {"vllm_xargs": given}), 400)
    assert error["param"] == "vllm_xargs" and words in error["message"]


@pytest.mark.parametrize("mood", ["broken", "leaving"])
def test_a_check_that_fails_ends_only_its_request(http: httpx.Client, mood: str) -> None:
    body = STORY | {"vllm_xargs": {"mood": mood}}
    check_error(http.post(COMPLETIONS, json=body), 500)
    stats = {(one["plugin"], one["hook"]): one for one in http.get("/plugins").json()["hooks"]}
    assert any(hook == "check" and one["failures"] for (_, hook), one in stats.items())
    assert tell(http, vllm_xargs={})["choices"]
