"""Every answer has the required fields, and the types, that the SDKs of OpenAI and Anthropic give.

The SDK for Python has many fields as optional that the API requires but may be null. The SDK for
TypeScript names them exactly. Fields that an SDK does not know are allowed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.shared import ErrorObject
from pydantic import TypeAdapter, ValidationError

from ...api.scripted import ScriptedExecutor, scripted_server
from ...api.serving import Served, serve_engine, toy_engine
from ...api.test_answers import events_of
from ...api.test_tools import ASK, CALL, CLOCK_CALL
from .environments import node_with

Answers = list[tuple[Any, Any]]
TYPES = {
    Message: "Anthropic.Message",
    MessageTokensCount: "Anthropic.MessageTokensCount",
    RawMessageStreamEvent: "Anthropic.RawMessageStreamEvent",
    Response: "Whole",
    ResponseStreamEvent: "Sent<OpenAI.Responses.ResponseStreamEvent>",
    ChatCompletion: "OpenAI.Chat.ChatCompletion",
    ChatCompletionChunk: "OpenAI.Chat.ChatCompletionChunk",
    Completion: "OpenAI.Completion",
    CreateEmbeddingResponse: "OpenAI.CreateEmbeddingResponse",
    Model: "OpenAI.Model",
    ErrorObject: "OpenAI.ErrorObject",
}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
HEAD = """import type Anthropic from "@anthropic-ai/sdk";
import type OpenAI from "openai";
type Whole = Omit<OpenAI.Responses.Response, "output_text" | "usage">
  & { usage?: OpenAI.Responses.ResponseUsage | null };
type Sent<T> = T extends { response: OpenAI.Responses.Response }
  ? Omit<T, "response"> & { response: Whole } : T;
type Fixed<T> = T extends (infer U)[] ? readonly Fixed<U>[]
  : T extends object ? { readonly [K in keyof T]: Fixed<T[K]> } & { reasoning?: unknown } : T;
const literal = <const T,>(value: T): T => value;
"""
"""A literal is passed through a function, because fields that are not known are an error in one. An
object must have one known field at least, so `reasoning`, which is vLLM's, is made known. The SDK
itself adds `output_text`, and OpenAI's first events have a usage of null."""
OPEN_RESPONSES = (
    *("background", "completed_at", "created_at", "error", "frequency_penalty", "id"),
    *("incomplete_details", "instructions", "max_output_tokens", "max_tool_calls", "metadata"),
    *("model", "object", "output", "parallel_tool_calls", "presence_penalty"),
    *("previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier", "service_tier"),
    *("status", "store", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p"),
    *("truncation", "usage"),
)
"""The fields that the Open Responses specification requires of a response."""
COMPILE = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022")


@pytest.fixture(scope="module")
def answers() -> Answers:
    """The answers of all routes that OpenAI's SDK has types for, whole and in pieces."""
    with scripted_server() as (served, model), serve_engine(toy_engine()) as toy:
        found = [*of_chats(served, model), *of_messages(served), *of_responses(served)]
        return [*found, *of_completions(toy), *of_others(toy)]


def of_chats(served: Served, model: ScriptedExecutor) -> Iterator[tuple[type, Any]]:
    model.says = f"<think>\nNorth.\n</think>\n\nCold.{CALL}{CLOCK_CALL}"
    plain = {name: value for name, value in ASK.items() if name != "tools"}
    with served.client() as http:
        for fields in (ASK, plain, plain | {"logprobs": True, "top_logprobs": 2, "n": 2}):
            for cut in ({}, {"max_tokens": 3}):
                body = fields | cut
                yield ChatCompletion, post(http, "/v1/chat/completions", body).json()
                streamed = post(http, "/v1/chat/completions", body | USAGE)
                yield from ((ChatCompletionChunk, event) for event in events_of(streamed))


def of_messages(served: Served) -> Iterator[tuple[Any, Any]]:
    function = ASK["tools"][0]["function"]
    tool = {
        "name": function["name"],
        "input_schema": function.get("parameters", {"type": "object"}),
    }
    body = {"model": served.engine.model_name, "messages": ASK["messages"], "temperature": 0}
    with served.client() as http:
        for fields in ({}, {"tools": [tool, tool | {"name": "clock"}]}):
            counted = {name: body[name] for name in ("model", "messages")} | fields
            yield MessageTokensCount, post(http, "/v1/messages/count_tokens", counted).json()
            for length in (400, 3):
                whole = body | fields | {"max_tokens": length}
                yield Message, post(http, "/v1/messages", whole).json()
                streamed = post(http, "/v1/messages", whole | {"stream": True})
                events = named_events_of(streamed)
                yield from ((RawMessageStreamEvent, e) for e in events if e["type"] != "ping")


def of_responses(served: Served) -> Iterator[tuple[Any, Any]]:
    function = {"parameters": None, "strict": None} | ASK["tools"][0]["function"]
    tool = {"type": "function", **function}
    body = {"input": "How is it in Oslo?", "temperature": 0, "max_output_tokens": 400}
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    with served.client() as http:
        for fields in ({}, logprobs, {"tools": [tool, tool | {"name": "clock"}]}):
            for cut in ({}, {"max_output_tokens": 3}):
                whole = body | fields | cut
                yield Response, post(http, "/v1/responses", whole).json()
                streamed = post(http, "/v1/responses", whole | {"stream": True})
                yield from ((ResponseStreamEvent, e) for e in named_events_of(streamed))


def named_events_of(streamed: httpx.Response) -> list[Any]:
    lines = streamed.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_responses_have_the_fields_of_the_open_specification(answers: Answers) -> None:
    found = [answer for kind, answer in answers if kind is Response]
    assert found
    for answer in found:
        assert set(OPEN_RESPONSES) <= set(answer)


def of_completions(toy: Served) -> Iterator[tuple[type, Any]]:
    body = {"model": toy.engine.model_name, "prompt": ["abc", "d"], "max_tokens": 3}
    with toy.client() as http:
        for fields in ({}, {"logprobs": 2, "n": 2}):  # echoed, the first token has null
            yield Completion, post(http, "/v1/completions", body | fields).json()
            for event in events_of(post(http, "/v1/completions", body | fields | USAGE)):
                for choice in event["choices"]:  # OpenAI sends null here, against its own types
                    choice["finish_reason"] = choice["finish_reason"] or "stop"
                yield Completion, event


def of_others(toy: Served) -> Iterator[tuple[type, Any]]:
    name = toy.engine.model_name
    with toy.client() as http:
        yield CreateEmbeddingResponse, post(http, "/v1/embeddings", {"input": ["a", "b"]}).json()
        yield from ((Model, one) for one in http.get("/v1/models").json()["data"])
        yield Model, http.get(f"/v1/models/{name}").json()
        yield ErrorObject, http.get("/v1/models/other").json()["error"]
        yield ErrorObject, http.get("/nowhere").json()["error"]
        for body in ({"messages": []}, {"model": "other"}, {"messages": 3}):
            yield ErrorObject, http.post("/v1/chat/completions", json=body).json()["error"]


def post(http: httpx.Client, path: str, body: Any) -> httpx.Response:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


def test_every_kind_of_answer_is_there(answers: Answers) -> None:
    assert {kind for kind, _ in answers} == set(TYPES)


def test_the_types_for_python(answers: Answers) -> None:
    faults = [fault for kind, answer in answers for fault in faults_of(kind, answer)]
    assert not faults, "\n".join(sorted(set(faults)))


def test_the_walker_finds_what_is_missing_or_wrong(answers: Answers) -> None:
    chat: Any = next(answer for kind, answer in answers if kind is ChatCompletion)
    broken = {**chat, "created": "1", "choices": [{"index": 0}]}
    del broken["id"]
    found = "\n".join(faults_of(ChatCompletion, broken))
    assert all(place in found for place in ("id:", "created:", "choices.0.message:"))


def faults_of(kind: Any, answer: Any) -> list[str]:
    """Where an answer lacks a required field, or has a value of another type."""
    try:
        adapter(kind).validate_json(json.dumps(answer), strict=True)
    except ValidationError as error:
        return [
            f"{TYPES[kind]}.{'.'.join(map(str, one['loc']))}: {one['msg']}"
            for one in error.errors()
        ]
    return []


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def test_the_types_for_typescript(answers: Answers) -> None:
    folder = node_with("openai@7", "@anthropic-ai/sdk@1", "typescript@5")
    assert not compiled(folder, answers)
    chat: Any = next(answer for kind, answer in answers if kind is ChatCompletion)
    del chat["choices"][0]["message"]["refusal"]
    assert "refusal" in compiled(folder, [(ChatCompletion, chat)]), "the check finds nothing"


def compiled(folder: Path, answers: Answers) -> str:
    """What the compiler says about the answers as values of the SDK's types."""
    lines = [
        f"const answer{number}: Fixed<{TYPES[kind]}> = literal({json.dumps(answer)});"
        for number, (kind, answer) in enumerate(answers)
    ]
    program = folder / "answers.mts"
    program.write_text(HEAD + "\n".join(lines))
    command = [str(folder / "node_modules" / ".bin" / "tsc"), *COMPILE, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert (done.returncode == 0) == (not done.stdout), done.stderr
    return done.stdout[:10_000]
