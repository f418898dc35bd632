"""Answers that follow a grammar: every spelling of the field, on real weights and a real socket."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from .serving import Served

MESSAGES = [{"role": "user", "content": "Describe a cat."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 20},
        "color": {"enum": ["black", "white"]},
    },
    "required": ["name", "age", "color"],
    "additionalProperties": False,
}
IGNORED = "x-tokenmill-ignored-fields"


@pytest.fixture(scope="module")
def http(real: Served) -> Iterator[httpx.Client]:
    with real.client() as client:
        yield client


def chat(http: httpx.Client, **fields: Any) -> httpx.Response:
    body = {"messages": MESSAGES, "max_tokens": 120, "temperature": 0} | fields
    return http.post("/v1/chat/completions", json=body)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    return str(choice["message"]["content"])


def schema_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "cat", "schema": schema, **more}}


IN_JSON: dict[str, dict[str, Any]] = {
    "response_format": {"response_format": schema_format(SCHEMA, strict=True)},
    "not strict": {"response_format": schema_format(SCHEMA)},
    "structured_outputs": {"structured_outputs": {"json": SCHEMA}},
    "as a text": {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    "guided_json": {"guided_json": SCHEMA, "response_format": {"type": "text"}},
}


@pytest.mark.parametrize("fields", IN_JSON.values(), ids=IN_JSON)
def test_an_answer_follows_a_schema(http: httpx.Client, fields: dict[str, Any]) -> None:
    response = chat(http, **fields)
    jsonschema.validate(json.loads(text_of(response)), SCHEMA)
    assert IGNORED not in response.headers


MATCHING: dict[str, tuple[str, dict[str, Any]]] = {
    "regex": (r"\d{3}-\d{2}", {"structured_outputs": {"regex": r"\d{3}-\d{2}"}}),
    "guided_regex": (r"\d{3}-\d{2}", {"guided_regex": r"^\d{3}-\d{2}$"}),
    "choice": ("yes|no|yes, but", {"structured_outputs": {"choice": ["yes", "no", "yes, but"]}}),
    "guided_choice": ("ja|nein", {"guided_choice": ["ja", "nein"]}),
    "lark": (
        r"(ab){1,3}!",
        {"structured_outputs": {"grammar": 'start: ab "!"\nab: "ab" | "ab" "ab" | "ababab"'}},
    ),
    "gbnf": (r"(a|b)c{1,4}", {"guided_grammar": 'root ::= ("a" | "b") "c"{1,4}'}),
}


@pytest.mark.parametrize(("pattern", "fields"), MATCHING.values(), ids=MATCHING)
def test_an_answer_matches(http: httpx.Client, pattern: str, fields: dict[str, Any]) -> None:
    text = text_of(chat(http, **fields))
    assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize(
    "fields",
    [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}],
)
def test_an_answer_is_a_json_object(http: httpx.Client, fields: dict[str, Any]) -> None:
    response = chat(http, max_tokens=40, **fields)
    choice = response.json()["choices"][0]
    text = choice["message"]["content"]
    assert text.lstrip().startswith("{")
    assert choice["finish_reason"] == "length" or isinstance(json.loads(text), dict)


def test_text_between_structural_tags_is_free(http: httpx.Client) -> None:
    tag = {"begin": "<cat>", "schema": SCHEMA, "end": "</cat>"}
    fields = {"type": "structural_tag", "structures": [tag], "triggers": ["<cat>"]}
    asked = [{"role": "user", "content": "Say <cat>"}]
    bias = {str(token): 100 for token in tokens(http, "<cat>")}
    answer = chat(
        http, messages=asked, response_format=fields, logit_bias=bias, max_tokens=8
    ).json()["choices"][0]["message"]["content"]
    found = re.search(r"<cat>\s*(.?)", answer)
    assert found is None or found[1] in ("", "{"), answer


def tokens(http: httpx.Client, text: str) -> list[int]:
    body = {"prompt": text, "add_special_tokens": False}
    found: list[int] = http.post("/tokenize", json=body).json()["tokens"]
    return found


def test_every_choice_and_every_prompt_follow_the_grammar(http: httpx.Client) -> None:
    body = {
        "prompt": ["One:", "Two:"],
        "n": 2,
        "temperature": 1.0,
        "max_tokens": 60,
        "logprobs": 1,
        "structured_outputs": {"regex": "[a-d]{2,6}"},
    }
    choices = http.post("/v1/completions", json=body).json()["choices"]
    assert len(choices) == 4
    assert all(re.fullmatch("[a-d]{2,6}", choice["text"]) for choice in choices)


def test_log_probabilities_are_those_of_the_model_without_the_grammar(http: httpx.Client) -> None:
    asked = {"max_tokens": 1, "logprobs": True, "top_logprobs": 3}
    found = [
        chat(http, **asked, **grammar).json()["choices"][0]["logprobs"]["content"][0]
        for grammar in ({}, {"guided_choice": ["q"]})
    ]
    free, bound = ({one["token"]: one["logprob"] for one in f["top_logprobs"]} for f in found)
    assert bound == pytest.approx(free, abs=1e-3)
    assert found[0]["token"] != found[1]["token"] == "q"


def test_a_stream_follows_the_grammar(real: Served) -> None:
    client = openai.OpenAI(base_url=f"{real.url}/v1", api_key="x", max_retries=0)
    format: Any = schema_format(SCHEMA, strict=True)
    with client:
        chunks = client.chat.completions.create(
            model=real.engine.model_name,
            messages=MESSAGES,  # type: ignore[arg-type]
            response_format=format,
            max_tokens=120,
            temperature=0,
            stream=True,
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    jsonschema.validate(json.loads(text), SCHEMA)


UNIQUE = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 2}
REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "strict": (
        "response_format", "uniqueItems is not supported",
        {"response_format": schema_format(UNIQUE, strict=True)},
    ),
    "vllm": (
        "structured_outputs", "uniqueItems is not supported",
        {"structured_outputs": {"json": UNIQUE}},
    ),
    "regex": ("guided_regex", "regex parse error", {"guided_regex": "(("}),
    "no schema": (
        "response_format", "schema is missing",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
    ),
    "no choices": ("guided_choice", "1 to 1024 texts", {"guided_choice": []}),
    "nothing": ("structured_outputs", "has no grammar", {"structured_outputs": {}}),
    "two": (
        "structured_outputs", "response_format and structured_outputs.regex cannot be combined",
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
    ),
    "both": (
        "structured_outputs", "structured_outputs.json and structured_outputs.regex",
        {"structured_outputs": {"regex": "a", "json": SCHEMA}},
    ),
    "unknown type": (
        "response_format", "one of 'json_object'",
        {"response_format": {"type": "yaml"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("param", "why", "fields"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_names_field_and_reason(
    http: httpx.Client, param: str, why: str, fields: dict[str, Any]
) -> None:
    response = chat(http, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert why in error["message"]
    assert error["param"].partition(".")[0] == param


def test_a_header_names_the_keywords_that_a_lenient_schema_ignores(http: httpx.Client) -> None:
    response = chat(http, response_format=schema_format(UNIQUE))
    assert response.headers[IGNORED] == "response_format.uniqueItems"
    assert isinstance(json.loads(text_of(response)), list)


def test_null_and_neutral_values_ask_for_nothing(http: httpx.Client) -> None:
    free = chat(http, max_tokens=5).json()["choices"][0]["message"]["content"]
    neutral = chat(
        http,
        max_tokens=5,
        response_format={"type": "text"},
        structured_outputs=None,
        guided_json=None,
        guided_regex=None,
    )
    assert neutral.json()["choices"][0]["message"]["content"] == free
