"""Every answer has the required fields, and the types, that the SDKs of OpenAI and Anthropic give.

The SDK for Python has many fields as optional that the API requires but may be null. The SDK for
TypeScript names them exactly. Fields that an SDK does not know are allowed. Responses also have the
types of the Open Responses specification.
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.shared import ErrorObject
from pydantic import TypeAdapter, ValidationError

from .environments import node_with, python_with, run_python
from .vendor_answers import Answer, vendor_answers

TYPES = {
    Message: "Anthropic.Message",
    MessageTokensCount: "Anthropic.MessageTokensCount",
    RawMessageStreamEvent: "Anthropic.RawMessageStreamEvent",
    ErrorResponse: "Anthropic.ErrorResponse",
    Response: "Whole",
    ResponseStreamEvent: "Sent<OpenAI.Responses.ResponseStreamEvent>",
    ChatCompletion: "OpenAI.Chat.ChatCompletion",
    ChatCompletionChunk: "OpenAI.Chat.ChatCompletionChunk",
    Completion: "OpenAI.Completion",
    CreateEmbeddingResponse: "OpenAI.CreateEmbeddingResponse",
    Model: "OpenAI.Model",
    ErrorObject: "OpenAI.ErrorObject",
}
STOP_REASONS = {"end_turn", "max_tokens", "stop_sequence", "tool_use"}
HEAD = """import type Anthropic from "@anthropic-ai/sdk";
import type OpenAI from "openai";
type Form = OpenAI.ResponseFormatText | OpenAI.ResponseFormatJSONObject
  | Omit<OpenAI.Responses.ResponseFormatTextJSONSchemaConfig, "description">
  & { description?: string | null };
type Whole = Omit<OpenAI.Responses.Response, "output_text" | "text" | "usage">
  & { text: Omit<OpenAI.Responses.ResponseTextConfig, "format"> & { format: Form } }
  & { usage: OpenAI.Responses.ResponseUsage | null };
type Sent<T> = T extends { response: OpenAI.Responses.Response }
  ? Omit<T, "response"> & { response: Whole } : T;
type Fixed<T> = T extends (infer U)[] ? readonly Fixed<U>[]
  : T extends object ? { readonly [K in keyof T]: Fixed<T[K]> } & { reasoning?: unknown } : T;
const literal = <const T,>(value: T): T => value;
"""
"""A literal is passed through a function, because fields that are not known are an error in one. An
object must have one known field at least, so `reasoning`, which is vLLM's, is made known. The SDK
itself adds `output_text`. OpenAI's first events have a usage of null, and Open Responses requires
the description of a schema, which may be null."""
COMPILE = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022")


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    return vendor_answers()


def test_every_kind_of_answer_is_there(answers: list[Answer]) -> None:
    assert {kind for kind, _ in answers} == set(TYPES)
    assert {answer["stop_reason"] for kind, answer in answers if kind is Message} == STOP_REASONS
    statuses = {answer["response"]["status"] for _, answer in answers if "response" in answer}
    assert statuses == {"in_progress", "completed", "incomplete", "failed"}
    blocks = [block["type"] for kind, one in answers if kind is Message for block in one["content"]]
    assert set(blocks) == {"text", "thinking", "tool_use"}


def test_the_types_for_python(answers: list[Answer]) -> None:
    faults = [fault for kind, answer in answers for fault in faults_of(kind, answer)]
    assert not faults, "\n".join(sorted(set(faults)))


def test_the_walker_finds_what_is_missing_or_wrong(answers: list[Answer]) -> None:
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


def test_the_types_for_typescript(answers: list[Answer]) -> None:
    folder = node_with("openai@7", "@anthropic-ai/sdk@1", "typescript@5")
    assert not compiled(folder, answers)
    chat: Any = next(answer for kind, answer in answers if kind is ChatCompletion)
    del chat["choices"][0]["message"]["refusal"]
    assert "refusal" in compiled(folder, [(ChatCompletion, chat)]), "the check finds nothing"


def compiled(folder: Path, answers: list[Answer]) -> str:
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


def test_the_types_of_open_responses(answers: list[Answer], tmp_path: Path) -> None:
    sent = [answer for kind, answer in answers if kind in (Response, ResponseStreamEvent)]
    broken = {name: value for name, value in sent[0].items() if name != "safety_identifier"}
    path = tmp_path / "answers.json"
    path.write_text(json.dumps([*sent, broken]))
    python = python_with("openresponses-types>=2.4,<3")
    *faults, last = run_python(python, "check_open_responses.py", str(path))
    assert last == ["ResponseResource.safety_identifier: Field required"]
    found = {fault for one in faults for fault in one}
    assert not found, "\n".join(sorted(found))
