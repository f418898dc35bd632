"""What answers hold beyond text, and that a stream says the same as a whole answer."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.providers.speculation import Draft, ProposalBatch
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.shell.local_engine import EngineParts, local_engine
from tokenmill.testing.simulated.executor import SimulatedExecutor, expected_tokens
from tokenmill.testing.toy_tokenizer import ToyTokenizer

from ..core.drafting_plugins import Drafting
from .serving import Served, SteeredExecutor, serve_engine, toy_engine

SEED = 7
ASK: dict[str, Any] = {"prompt": "abc", "max_tokens": 6, "seed": SEED}


def expected(prompt: str, num_tokens: int = 6) -> str:
    return "".join(map(chr, expected_tokens(list(map(ord, prompt)), num_tokens, SEED, 1000)))


def whole(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/completions", json=ASK | fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers.get("x-accel-buffering") == "no", "a proxy would hold events back"
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def streamed(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    return events_of(http.post("/v1/completions", json=ASK | {"stream": True} | fields))


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(c["text"] for e in events for c in e["choices"] if c["index"] == index)


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"prompt": [97, 98, 99], "echo": True}])
def test_the_text_is_the_engine_s_with_the_prompt_before_it_if_asked(
    http: httpx.Client, fields: dict[str, Any]
) -> None:
    text = ("abc" if fields else "") + expected("abc")
    assert whole(http, **fields)["choices"][0]["text"] == text
    assert text_of(streamed(http, **fields)) == text


def test_each_choice_of_several_prompts_and_n_has_an_index_of_its_own(http: httpx.Client) -> None:
    answer = whole(http, prompt=["abc", "de"], n=2)
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 24,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    events = streamed(http, prompt=["abc", "de"], n=2)
    assert [text_of(events, i) for i in range(4)] == [c["text"] for c in answer["choices"]]
    assert answer["choices"][2]["text"] == expected("de")


def test_token_ids_come_if_asked(http: httpx.Client) -> None:
    choice = whole(http, return_token_ids=True)["choices"][0]
    assert choice["prompt_token_ids"] == [97, 98, 99]
    assert "".join(map(chr, choice["token_ids"])) == choice["text"]
    events = streamed(http, return_token_ids=True)
    assert [t for e in events for t in e["choices"][0]["token_ids"]] == choice["token_ids"]
    assert "token_ids" not in whole(http)["choices"][0]


def test_usage_runs_along_if_asked(http: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = streamed(http, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 6
    assert events[-1]["choices"] == []
    assert not any("usage" in event for event in streamed(http))


@pytest.mark.parametrize("include", [True, False])
def test_a_stop_string_is_named_and_shown_only_if_asked(http: httpx.Client, include: bool) -> None:
    stop = expected("abc")[2:4]
    choice = whole(http, stop=stop, include_stop_str_in_output=include)["choices"][0]
    assert choice["text"] == expected("abc", 4 if include else 2)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    events = streamed(http, stop=[stop], include_stop_str_in_output=include)
    assert text_of(events) == choice["text"]
    assert events[-1]["choices"][0]["stop_reason"] == stop


def test_a_chat_may_continue_the_last_message(real: Served) -> None:
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    body = {"messages": messages, "max_tokens": 3, "temperature": 0}
    with real.client() as http:
        continued = http.post("/v1/chat/completions", json=body | {"continue_final_message": True})
        assert continued.json()["choices"][0]["message"]["content"].startswith(" Paris")
        both = body | {"continue_final_message": True, "add_generation_prompt": True}
        assert http.post("/v1/chat/completions", json=both).status_code == 400


def test_an_answer_may_be_sent_back_with_its_nulls(real: Served) -> None:
    message = {"role": "assistant", "content": "Hi!", "refusal": None, "audio": None,
               "annotations": [], "function_call": None, "tool_calls": None}  # fmt: skip
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "again"}]
    messages = [{"role": "user", "content": "Hi"}, message, {"role": "user", "content": parts}]
    with real.client() as http:
        body = {"messages": messages, "max_tokens": 2}
        response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text


def test_a_silent_stream_is_kept_alive_with_comments() -> None:
    executor = SteeredExecutor()
    executor.gate.clear()
    with serve_engine(toy_engine(executor), sse_keep_alive_interval=0.05) as served:
        with (
            served.client() as http,
            http.stream("POST", "/v1/completions", json=ASK | {"stream": True}) as stream,
        ):
            lines = stream.iter_lines()
            assert next(lines) == ": keep-alive"
            executor.gate.set()
            rest = [line for line in lines if line and not line.startswith(":")]
        assert rest[-1] == "data: [DONE]"
        assert "".join(json.loads(line[6:])["choices"][0]["text"] for line in rest[:-1]) == (
            expected("abc")
        )
        served.wait_idle()


def peek(batch: ProposalBatch) -> list[Draft]:
    """What the simulated model will say to ASK, and then a token that is wrong."""
    coming = [expected_tokens(request.token_ids, 2, SEED, 1000) for request in batch.requests]
    return [
        Draft(token_ids=(right, (other + 1) % 1000)[: request.max_draft_tokens])
        for (right, other), request in zip(coming, batch.requests, strict=True)
    ]


def test_drafted_tokens_are_in_the_usage() -> None:
    def build(config: EngineConfig, progress: Any) -> EngineParts:
        plugins = PluginHost.load(config, extra=[Drafting(peek)])
        assert plugins.speculator is not None
        executor = SimulatedExecutor(
            num_blocks=256, block_size=4, propose=plugins.speculator.propose
        )
        return EngineParts(executor=executor, tokenizer=ToyTokenizer(), plugins=plugins)

    config = EngineConfig(
        disable_log_stats=True,
        async_scheduling=False,  # a step that is planned ahead has no drafts
        speculative_method="drafting",
        speculative_adaptive=False,
    )
    with serve_engine(local_engine(config, build)) as served, served.client() as http:
        answer = whole(http, max_tokens=7)
        assert answer["choices"][0]["text"] == expected("abc", 7)
        details = answer["usage"]["completion_tokens_details"]
        # The first token, then twice a draft with one right and one wrong token, and one token from
        # the model; near max_tokens nothing is drafted any more.
        assert details == {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 2}
        events = streamed(http, max_tokens=7, stream_options={"include_usage": True})
        assert events[-1]["usage"]["completion_tokens_details"] == details
