"""Events come in OpenAI's order, and items of the input become chat messages."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import httpx
import msgspec
import openai
import pytest

from tokenmill.api.chat.messages import Images
from tokenmill.api.responses.bodies import ResponsesBody
from tokenmill.api.responses.conversation import read_messages

from ..serving import SteeredExecutor, serve_engine, toy_engine
from ..test_errors import check_error
from ..test_many_grammars import make_checker

CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city": "Oslo"}',
}
JSON_OBJECT = {"type": "json_object"}
TOOL = {"type": "function", "name": "weather"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}


def post(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/responses", json={"input": "hi", "max_output_tokens": 3} | fields)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of all events. Each has the name that its data has as type, and its number."""
    assert response.headers["content-type"].startswith("text/event-stream")
    found: list[dict[str, Any]] = []
    for event in response.text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        assert found[-1]["sequence_number"] == len(found) - 1
    return found


def test_events_come_in_order_and_repeat_what_they_end(http: httpx.Client) -> None:
    events = events_of(post(http, stream=True))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert [kind for kind, _ in groupby(kinds)] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    *_, text_done, part_done, item_done, end = events
    deltas = [event for event in events if "delta" in event]
    item_id = events[2]["item"]["id"]
    assert {event["item_id"] for event in (events[3], *deltas, text_done, part_done)} == {item_id}
    text = "".join(event["delta"] for event in deltas)
    assert text_done["text"] == part_done["part"]["text"] == text
    assert events[0]["response"]["output"] == [] and events[0]["response"]["usage"] is None
    last = end["response"]
    assert last["output"] == [item_done["item"]] and last["output"][0]["id"] == item_id
    assert last["usage"]["output_tokens"] == 3
    assert {event["response"]["id"] for event in (*events[:2], end)} == {last["id"]}


def test_an_answer_that_fails_ends_with_a_failed_response_and_raises_in_the_sdk() -> None:
    executor = SteeredExecutor()
    executor.failure = RuntimeError("the device is lost")
    with serve_engine(toy_engine(executor)) as served, served.client() as http:
        events = events_of(post(http, stream=True))
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
        with client, pytest.raises(openai.APIError, match="request failed"):
            list(client.responses.create(model="simulated", input="hi", stream=True))
    assert [event["type"] for event in events[2:]] == ["error", "response.failed"]
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["error"]["message"] == events[-2]["message"] != ""
    assert {name: events[-2][name] for name in ("code", "message", "param")} | {
        "type": "server_error"
    } == events[-2]["error"]


def test_the_form_of_a_schema_has_a_name_and_says_whether_it_is_strict() -> None:
    given = {"type": "json_schema", "schema": {"const": "a"}}
    with serve_engine(toy_engine(grammars=make_checker())) as served, served.client() as http:
        form = post(http, text={"format": given}).json()["text"]["format"]
    assert form == given | {"name": "", "description": None, "strict": False}


def test_padding_against_traffic_analysis_is_refused_and_its_absence_is_not(
    http: httpx.Client,
) -> None:
    def ask(value: bool) -> httpx.Response:
        return post(http, stream=True, stream_options={"include_obfuscation": value})

    assert ask(False).status_code == 200
    check_error(ask(True), 400, "stream_options.include_obfuscation")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": None}, "input", "input"),
        ({"input": []}, "input", "1 to 16384 items"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input", "stores no items"),
        ({"input": [{"role": "user"}]}, "input", "input[0].content is missing"),
        ({"input": [{"content": "a"}]}, "input", "input[0].role is missing"),
        ({"input": [CALL | {"name": None}]}, "input", "input[0].name is missing"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0]",
            "input[0].content[0] of type 'input_file'",
        ),
        ({"top_logprobs": 2}, "top_logprobs", "include"),
        ({"max_output_tokens": 0}, "max_output_tokens", "from 1 to"),
        ({"include": ["file_search_call.results"]}, "include", "'reasoning.encrypted_content'"),
        ({"max_output_tokens": 5000}, "max_output_tokens", "lower max_output_tokens to"),
        ({"max_output_tokens": None, "input": "a" * 9000}, "input", "cannot hold more"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "text.format.schema is"),
        (
            {"text": {"format": JSON_OBJECT}, "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
            "text.format and structured_outputs.regex",
        ),
        ({"tools": [TOOL | {"parameters": {"type": "array"}}]}, "tools", "tools[0].parameters"),
        (
            {"include": ["message.output_text.logprobs"], "top_logprobs": 900},
            "top_logprobs",
            "at most",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "max_tokens"}},
            "tool_choice",
            "names 'max_tokens'",
        ),
    ],
)
def test_a_wrong_field_is_named(
    http: httpx.Client, fields: dict[str, Any], param: str, words: str
) -> None:
    assert words in check_error(post(http, **fields), 400, param)["message"]


def test_fields_without_an_effect_are_repeated_or_accepted(http: httpx.Client) -> None:
    fields = {
        "metadata": {"a": "b"},
        "user": "u",
        "reasoning": {"effort": "low", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "previous_response_id": None,
        "tools": [],
        "max_tool_calls": 3,
    }
    answer = post(http, **fields)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["metadata"] == {"a": "b"} and found["user"] == "u"
    assert found["reasoning"]["effort"] == "low" and found["max_tool_calls"] == 3
    assert "x-tokenmill-ignored-fields" not in answer.headers


def chat_messages(*items: dict[str, Any]) -> list[dict[str, Any]]:
    body = msgspec.convert({"input": list(items)}, ResponsesBody)
    return [
        {name: value for name, value in message.items() if value is not None}
        for message in msgspec.to_builtins(list(read_messages(body, Images())))
    ]


def test_items_between_two_messages_of_others_are_one_turn_of_the_assistant() -> None:
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]}
    asked, turn, tool, last = chat_messages(
        {"role": "user", "content": "How is it?"},
        thought | {"summary": [], "encrypted_content": None},
        said | {"type": "message", "id": "m", "status": "completed"},
        CALL,
        CALL | {"call_id": "c2"},
        OUTPUT,
        {"role": "developer", "content": "Be brief."},
    )
    assert asked["role"] == "user" and last["role"] == "developer"
    assert turn["role"] == "assistant" and turn["reasoning_content"] == "hm"
    assert [part["text"] for part in turn["content"]] == ["Let me look."]
    assert [call["id"] for call in turn["tool_calls"]] == ["c1", "c2"]
    assert turn["tool_calls"][0]["function"]["name"] == "weather"
    assert (tool["role"], tool["tool_call_id"]) == ("tool", "c1")


def test_a_turn_of_tool_calls_alone_has_no_content() -> None:
    (turn,) = chat_messages(CALL)
    assert "content" not in turn and len(turn["tool_calls"]) == 1
