"""Ollama's API by its plugin, as Ollama's documentation describes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tokenmill.plugins.routes import ollama

from .scripted import PLAIN_TEMPLATE, ScriptedExecutor, scripted_server

SAYS = "It is late."
CALLS = (
    '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
Server = tuple[httpx.Client, ScriptedExecutor]


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with (
        scripted_server(route="ollama", served_model_name="m") as (served, model),
        served.client() as http,
    ):
        yield http, model


@pytest.fixture
def server(running: Server) -> Server:
    running[1].says = SAYS
    return running


def chat(http: httpx.Client, *contents: str, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": text} for text in contents]
    return http.post("/api/chat", json={"model": "m", "messages": messages} | fields)


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_chat_streams_lines_by_default(server: Server) -> None:
    found = lines(chat(server[0], "Hi"))
    assert "".join(one["message"]["content"] for one in found) == SAYS
    *others, end = found
    assert not any(one["done"] for one in others)
    assert end["done"] and end["done_reason"] == "stop" and end["model"] == "m"
    assert end["eval_count"] == len(SAYS) + 1 and end["prompt_eval_count"] > 0
    assert 0 < end["prompt_eval_duration"] <= end["total_duration"]
    assert all(one["message"]["role"] == "assistant" for one in found)


def test_a_whole_answer_is_one_object_and_options_are_sampling_parameters(server: Server) -> None:
    http, _ = server
    options = {"num_predict": 5, "num_ctx": 4096, "mirostat": 1}
    answer = chat(http, "Hi", stream=False, options=options, keep_alive="5m")
    found = answer.json()
    assert found["message"] == {"role": "assistant", "content": SAYS[:5]}
    assert found["done_reason"] == "length" and found["eval_count"] == 5
    ignored = answer.headers["x-tokenmill-ignored-fields"]
    assert ignored == "options.num_ctx, options.mirostat"
    assert (
        chat(http, "Hi", stream=False, options={"num_predict": -1}).json()["done_reason"] == "stop"
    )
    assert (
        chat(http, "Hi", stream=False, options={"stop": ["late"]}).json()["message"]["content"]
        == "It is "
    )
    whole = chat(http, "Hi", stream=False, options={"num_predict": 4.0, "top_k": 1.0, "seed": 3.0})
    assert whole.json()["eval_count"] == 4
    for more_than_the_context in (1 << 20, 1e9):
        options = {"num_predict": more_than_the_context}
        assert chat(http, "Hi", stream=False, options=options).json()["done_reason"] == "stop"
    assert chat(http, "Hi", options={"num_predict": 4.5}).status_code == 400
    wrong = chat(http, "Hi", options={"num_predict": "x"})
    assert wrong.status_code == 400 and "options.num_predict must be" in wrong.json()["error"]


def test_a_prompt_is_answered_by_the_chat_template(server: Server) -> None:
    http, _ = server
    ask = {"model": "m:latest", "prompt": "Hi", "system": "Be brief."}
    found = lines(http.post("/api/generate", json=ask))
    assert "".join(one["response"] for one in found) == SAYS
    whole = http.post("/api/generate", json=ask | {"stream": False}).json()
    assert whole["response"] == SAYS and whole["done"] and "message" not in whole
    shown = "[system] Be brief.[user] Hi<|assistant|>"  # Jinja drops line ends after blocks
    count = http.post("/tokenize", json={"prompt": shown}).json()["count"]
    assert whole["prompt_eval_count"] == count
    for name, value in {"raw": True, "context": [1], "suffix": "x"}.items():
        refused = http.post("/api/generate", json=ask | {name: value})
        assert refused.status_code == 400 and name in refused.json()["error"]


def test_tool_calls_come_with_their_arguments_and_go_back_without_ids(server: Server) -> None:
    http, model = server
    model.says = CALLS
    calls = [{"function": {"name": "weather", "arguments": {"city": c}}} for c in ("Oslo", "Rome")]
    whole = chat(http, "Hi", tools=[TOOL], stream=False).json()
    assert whole["message"]["tool_calls"] == calls and whole["done_reason"] == "stop"
    found = lines(chat(http, "Hi", tools=[TOOL]))
    assert [one["message"].get("tool_calls") for one in found] == [calls, None]
    model.says = SAYS
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "thinking": "x", "tool_calls": calls},
        {"role": "tool", "content": "cold", "tool_name": "weather"},
        {"role": "tool", "content": "warm", "tool_name": "weather"},
    ]
    ask = {"model": "m", "messages": history, "tools": [TOOL], "stream": False}
    assert http.post("/api/chat", json=ask).json()["message"]["content"] == SAYS
    wrong = chat(http, "Hi", tools=[{"function": {}}])
    assert wrong.status_code == 400
    assert wrong.json()["error"] == "tools[0].function.name is missing"
    wrong = chat(http, "Hi", tools=[{"function": {"name": "a b"}}])
    assert wrong.json()["error"].startswith("tools[0].function.name must be a string")


def test_thinking_is_apart_from_content(server: Server) -> None:
    http, model = server
    model.says = "<think>Hm.</think>Late."
    message = chat(http, "Hi", stream=False).json()["message"]
    assert (message["thinking"], message["content"]) == ("Hm.", "Late.")
    found = lines(chat(http, "Hi"))
    assert "".join(one["message"].get("thinking", "") for one in found) == "Hm."
    model.says = "Hm.</think>Late."
    assert chat(http, "Hi", stream=False, think=True).json()["message"]["thinking"] == "Hm."


def test_a_request_without_messages_or_prompt_loads_the_model(server: Server) -> None:
    http, _ = server
    for path in ("/api/chat", "/api/generate"):
        found = http.post(path, json={"model": "m", "keep_alive": 0}).json()
        assert found["done"] and found["done_reason"] == "load"
        lost = http.post(path, json={"model": "other"})
        assert lost.status_code == 404 and "other" in lost.json()["error"]


def test_models_are_listed_and_shown(server: Server) -> None:
    http, _ = server
    [model] = http.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] == "m" and len(model["digest"]) == 64
    shown = http.post("/api/show", json={"model": "m:latest"}).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert http.post("/api/show", json={"name": "m"}).json() == shown
    assert "message" in shown["template"] or "messages" in shown["template"]
    assert http.get("/api/version").json()["version"]
    for path, body in (
        ("show", {}),
        ("chat", {"messages": [{"role": "user", "content": "x"}]}),
        ("chat", {}),
        ("generate", {"prompt": ""}),
    ):
        lost = http.post(f"/api/{path}", json={"model": "other"} | body)
        assert lost.status_code == 404 and "other" in lost.json()["error"]


def test_errors_have_ollamas_form_also_in_streams(server: Server) -> None:
    http, _ = server
    assert "format" in chat(http, "Hi", format="xml").json()["error"]
    assert chat(http, "Hi", messages=[{"role": "user", "images": ["x"]}]).status_code == 400
    images = http.post("/api/generate", json={"model": "m", "prompt": "Hi", "images": ["x"]})
    assert "reads only text" in images.json()["error"]
    assert isinstance(http.get("/api/chat").json()["error"], str)
    assert chat(http, "Hi", think="often").json()["error"].startswith("think must be none, ")
    body = '{"model": "m", "options": {"seed": 1e400}}'
    huge = http.post("/api/chat", content=body, headers={"Content-Type": "application/json"})
    assert huge.json()["error"] == "options[...] is a number that is out of range"


def test_a_path_that_ollama_has_and_this_server_has_not_is_missing_in_ollamas_form(
    server: Server,
) -> None:
    http, _ = server
    for method, path in (
        ("POST", "/api/pull"),
        ("POST", "/api/create"),
        ("DELETE", "/api/delete"),
        ("GET", "/api/ps"),
        ("HEAD", "/api/blobs/sha256:00"),
        ("POST", "/api/embed"),
    ):
        missing = http.request(method, path)
        assert missing.status_code == 404
        if method != "HEAD":
            reason = f"there is no {method} {path} here; GET / lists all paths"
            assert missing.json() == {"error": reason}
    assert "/api/  " not in http.get("/").text
    assert "message" in http.get("/other").json()["error"]
    assert "message" in http.get("/v1/other").json()["error"]


def test_the_contract_makes_a_wire_format_short() -> None:
    assert len(Path(str(ollama.__file__)).read_text(encoding="utf-8").splitlines()) < 260


def test_a_model_without_tools_says_so() -> None:
    with (
        scripted_server(PLAIN_TEMPLATE, route="ollama", tool_call_parser="none") as (served, model),
        served.client() as http,
    ):
        model.says = SAYS
        name = http.get("/api/tags").json()["models"][0]["name"]
        assert http.post("/api/show", json={"model": name}).json()["capabilities"][:2] == [
            "completion"
        ]
