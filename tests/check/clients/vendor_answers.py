"""Answers and events of all routes for which a vendor's SDK has types, each with its type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.shared import ErrorObject

from ...api.scripted import scripted_server
from ...api.serving import Served, SteeredExecutor, serve_engine, toy_engine
from ...api.test_answers import events_of
from ...api.test_many_grammars import make_checker
from ...api.test_tools import ASK, CALL, CLOCK_CALL

Answer = tuple[Any, Any]
"""A type and a value."""
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
FUNCTION = ASK["tools"][0]["function"]
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
LOGPROBS = ["message.output_text.logprobs"]
ALLOWED = {
    "type": "allowed_tools",
    "mode": "required",
    "tools": [{"type": "function", "name": "clock"}],
}


def vendor_answers() -> list[Answer]:
    """Whole answers, streams and errors: with reasoning and tools, with each reason to stop, and
    with each field of a request that an answer repeats."""
    scripted = scripted_server(grammars=make_checker())
    with scripted as (served, model), serve_engine(toy_engine()) as toy:
        model.says = f"<think>\nNorth.\n</think>\n\nCold.{CALL}{CLOCK_CALL}"
        found = [*of_chats(served), *of_messages(served), *of_responses(served)]
        found += [*of_completions(toy), *of_others(toy)]
    broken = SteeredExecutor()
    broken.failure = RuntimeError("the device is lost")
    with serve_engine(toy_engine(broken)) as served:
        return [*found, *of_failures(served)]


def of_chats(served: Served) -> Iterator[Answer]:
    plain = {name: value for name, value in ASK.items() if name != "tools"}
    with served.client() as http:
        for fields in (ASK, plain, plain | {"logprobs": True, "top_logprobs": 2, "n": 2}):
            for cut in ({}, {"max_tokens": 3}):
                body = fields | cut
                yield ChatCompletion, post(http, "/v1/chat/completions", body).json()
                streamed = post(http, "/v1/chat/completions", body | USAGE)
                yield from ((ChatCompletionChunk, event) for event in events_of(streamed))


def of_messages(served: Served) -> Iterator[Answer]:
    schema = FUNCTION.get("parameters", {"type": "object"})
    tools = [{"name": name, "input_schema": schema} for name in (FUNCTION["name"], "clock")]
    body = {"model": "simulated", "messages": ASK["messages"], "temperature": 0}
    cases: list[dict[str, Any]] = [
        {"max_tokens": 400},
        {"max_tokens": 400, "tools": tools},
        {"max_tokens": 60, "tools": tools},
        {"max_tokens": 40, "stop_sequences": ["old"]},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"}},
        {"thinking": {"type": "disabled"}, "output_config": {"format": FORMAT}},
        {"tools": tools, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    ]
    with served.client() as http:
        for fields in ({}, {"tools": tools}):
            counted = {name: body[name] for name in ("model", "messages")} | fields
            yield MessageTokensCount, post(http, "/v1/messages/count_tokens", counted).json()
        for case in cases:
            whole = body | {"max_tokens": 3} | case
            yield Message, post(http, "/v1/messages", whole).json()
            streamed = post(http, "/v1/messages", whole | {"stream": True})
            yield from message_events(streamed)
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            yield ErrorResponse, http.get(path).json()
            for wrong in ({}, body | {"max_tokens": 1, "model": "other"}):
                yield ErrorResponse, http.post(path, json=wrong).json()


def message_events(streamed: httpx.Response) -> Iterator[Answer]:
    """The SDK has no type for pings."""
    for event in named_events_of(streamed):
        if event["type"] != "ping":
            yield ErrorResponse if event["type"] == "error" else RawMessageStreamEvent, event


def of_responses(served: Served) -> Iterator[Answer]:
    tool = {"type": "function", "name": FUNCTION["name"], "parameters": FUNCTION["parameters"]}
    tools = [tool, {"type": "function", "name": "clock", "strict": True}]
    body = {"input": "How is it in Oslo?", "temperature": 0, "max_output_tokens": 3}
    cases: list[dict[str, Any]] = [
        {"max_output_tokens": 400, "include": LOGPROBS, "top_logprobs": 2},
        {"max_output_tokens": 400, "tools": tools},
        {"max_output_tokens": 60, "tools": tools},
        {"tools": tools, "tool_choice": "none", "parallel_tool_calls": False},
        {"tools": tools, "tool_choice": {"type": "function", "name": "clock"}},
        {"tools": tools, "tool_choice": ALLOWED},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}},
        {"text": {"format": {"type": "json_object"}}},
        {"text": {"format": FORMAT}},
        {"text": {"format": FORMAT | {"name": "x", "description": "y", "strict": True}}},
        {"reasoning": {"effort": "low", "summary": "auto"}, "instructions": "Be brief."},
        {"presence_penalty": 0.5, "frequency_penalty": -1, "top_p": 0.9, "temperature": 1.5},
        {"metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
        {"max_tool_calls": 2, "max_output_tokens": None, "service_tier": "auto", "store": False},
    ]
    with served.client() as http:
        for case in cases:
            yield Response, post(http, "/v1/responses", body | case).json()
            streamed = post(http, "/v1/responses", body | case | {"stream": True})
            yield from ((ResponseStreamEvent, event) for event in named_events_of(streamed))
        for wrong in ({}, {"input": "a", "top_logprobs": 2}, {"input": "a", "model": "other"}):
            yield ErrorObject, http.post("/v1/responses", json=wrong).json()["error"]


def of_failures(served: Served) -> Iterator[Answer]:
    """The answers of a server whose engine fails."""
    message = {"model": "simulated", "max_tokens": 3, "messages": ASK["messages"]}
    with served.client() as http:
        yield from message_events(post(http, "/v1/messages", message | {"stream": True}))
        for event in named_events_of(post(http, "/v1/responses", {"input": "a", "stream": True})):
            yield ResponseStreamEvent, event
        yield ErrorResponse, http.post("/v1/messages", json=message).json()
        yield ErrorObject, http.post("/v1/responses", json={"input": "a"}).json()["error"]


def of_completions(toy: Served) -> Iterator[Answer]:
    body = {"model": toy.engine.model_name, "prompt": ["abc", "d"], "max_tokens": 3}
    with toy.client() as http:
        for fields in ({}, {"logprobs": 2, "n": 2}):  # echoed, the first token has null
            yield Completion, post(http, "/v1/completions", body | fields).json()
            for event in events_of(post(http, "/v1/completions", body | fields | USAGE)):
                for choice in event["choices"]:  # OpenAI sends null here, against its own types
                    choice["finish_reason"] = choice["finish_reason"] or "stop"
                yield Completion, event


def of_others(toy: Served) -> Iterator[Answer]:
    name = toy.engine.model_name
    with toy.client() as http:
        yield CreateEmbeddingResponse, post(http, "/v1/embeddings", {"input": ["a", "b"]}).json()
        yield from ((Model, one) for one in http.get("/v1/models").json()["data"])
        yield Model, http.get(f"/v1/models/{name}").json()
        yield ErrorObject, http.get("/v1/models/other").json()["error"]
        yield ErrorObject, http.get("/nowhere").json()["error"]
        for body in ({"messages": []}, {"model": "other"}, {"messages": 3}):
            yield ErrorObject, http.post("/v1/chat/completions", json=body).json()["error"]


def named_events_of(streamed: httpx.Response) -> list[Any]:
    lines = streamed.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def post(http: httpx.Client, path: str, body: Any) -> httpx.Response:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response
