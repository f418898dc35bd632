"""Events come in Anthropic's order, blocks become chat messages, errors have Anthropic's shape."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import httpx
import msgspec
import pytest

from tokenmill.api.anthropic.bodies import MessagesBody
from tokenmill.api.anthropic.conversation import read_conversation

from ..serving import SteeredExecutor, serve_engine, toy_engine

ASK: dict[str, Any] = {
    "model": "simulated",
    "max_tokens": 3,
    "messages": [{"role": "user", "content": "hi"}],
}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}


def post(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/messages", json=ASK | fields)


def check_error(response: httpx.Response, status: int, kind: str) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert body["request_id"] == response.headers["x-request-id"]
    assert body["error"]["type"] == kind
    message: str = body["error"]["message"]
    return message


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of all events. Each has the name that its data has as type."""
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for event in response.text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_events_come_in_order_and_each_block_is_closed(http: httpx.Client) -> None:
    events = events_of(post(http, stream=True))
    kinds = [event["type"] for event in events]
    assert [kind for kind, _ in groupby(kinds)] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["role"]) == ([], None, "assistant")
    assert start["id"].startswith("msg") and start["usage"]["input_tokens"] > 0
    assert events[2]["content_block"]["type"] == "text"
    assert {event["index"] for event in events if "index" in event} == {0}
    end = events[-2]["delta"]
    assert (end["stop_reason"], end["stop_sequence"]) == ("max_tokens", None)
    assert events[-2]["usage"]["output_tokens"] == 3


PIXEL = {"type": "base64", "media_type": "image/png", "data": "AAAA"}


def test_an_answer_that_fails_ends_with_an_error_event() -> None:
    executor = SteeredExecutor()
    executor.failure = RuntimeError("the device is lost")
    with serve_engine(toy_engine(executor)) as served, served.client() as http:
        streamed = post(http, stream=True)
        events = events_of(streamed)
        assert [event["type"] for event in events] == ["message_start", "ping", "error"]
        assert events[-1]["request_id"] == streamed.headers["x-request-id"]
        assert events[-1]["error"]["type"] == "api_error" and events[-1]["error"]["message"]
        check_error(post(http), 500, "api_error")


def test_a_stream_without_news_is_kept_alive_with_pings() -> None:
    executor = SteeredExecutor(step_seconds=0.3)
    settings = {"sse_keep_alive_interval": 0.05}
    with serve_engine(toy_engine(executor), **settings) as served, served.client() as http:
        kinds = [event["type"] for event in events_of(post(http, stream=True, max_tokens=1))]
    assert kinds.count("ping") > 2 and kinds[-1] == "message_stop"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "'user'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0].source is missing",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": PIXEL}]}]},
            "messages[0].content[0]: the model simulated reads only text",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [TOOL_RESULT | {"content": [{"type": "document"}]}]}
                ]
            },
            "messages[0].content[0].content[0] of type 'document'",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "movie"}]}]}, "'tool_result'"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        (
            {"tools": [{"name": "max_tokens", "input_schema": {"type": "array"}}]},
            "tools[0].input_schema must be",
        ),
    ],
)
def test_a_wrong_field_is_named(http: httpx.Client, fields: dict[str, Any], words: str) -> None:
    assert words in check_error(post(http, **fields), 400, "invalid_request_error")


def test_a_wrong_field_is_named_when_tokens_are_counted_too(http: httpx.Client) -> None:
    tools = [{"name": "a", "input_schema": {"type": "array"}}]
    body = {"messages": ASK["messages"], "model": "simulated", "tools": tools}
    answer = http.post("/v1/messages/count_tokens", json=body)
    assert "input_schema" in check_error(answer, 400, "invalid_request_error")


def test_the_version_of_the_api_is_not_checked(http: httpx.Client) -> None:
    for version in ("2023-06-01", "2026-10-21"):
        answer = http.post("/v1/messages", json=ASK, headers={"anthropic-version": version})
        assert answer.status_code == 200


def test_errors_before_the_route_have_anthropic_s_shape_too(http: httpx.Client) -> None:
    check_error(http.get("/v1/messages"), 405, "invalid_request_error")
    check_error(http.post("/v1/messages", content=b"{"), 400, "invalid_request_error")
    large = b" " * (5 << 20)
    check_error(http.post("/v1/messages", content=large), 413, "request_too_large")
    foreign = http.post("/v1/messages/count_tokens", json=ASK, headers={"Host": "evil.example"})
    check_error(foreign, 403, "permission_error")
    with serve_engine(toy_engine(), api_keys=("k",)) as served, served.client() as guarded:
        check_error(post(guarded), 401, "authentication_error")
        both = {"Authorization": "Bearer wrong", "x-api-key": "k"}
        check_error(
            guarded.post("/v1/messages", json=ASK, headers=both), 401, "authentication_error"
        )
        empty = guarded.post("/v1/messages", json=ASK, headers={"x-api-key": ""})
        check_error(empty, 401, "authentication_error")


def chat_messages(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    body = msgspec.convert(ASK | {"messages": list(messages)} | fields, MessagesBody)
    found: list[dict[str, Any]] = [
        {name: value for name, value in message.items() if value is not None}
        for message in msgspec.to_builtins(list(read_conversation(body).messages))
    ]
    return found


def test_a_tool_s_result_becomes_a_message_of_its_own() -> None:
    asked, *rest = chat_messages(
        {"role": "assistant", "content": [TOOL_USE]},
        {"role": "user", "content": [TOOL_RESULT, {"type": "text", "text": "And tomorrow?"}]},
    )
    assert "content" not in asked
    (call,) = asked["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("t1", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    assert rest[0] == {"role": "tool", "tool_call_id": "t1", "content": "sunny"}
    assert rest[1]["role"] == "user" and rest[1]["content"][0]["text"] == "And tomorrow?"


def test_the_model_sees_that_a_call_has_failed() -> None:
    def result(**fields: Any) -> Any:
        content = [TOOL_RESULT | fields]
        _, tool = chat_messages(
            {"role": "assistant", "content": [TOOL_USE]}, {"role": "user", "content": content}
        )
        return tool["content"]

    assert result(is_error=False) == "sunny"
    assert result(is_error=True) == "Error: sunny"
    assert result(is_error=True, content=None) == "Error: "
    (part, other) = result(
        is_error=True, content=[{"type": "text", "text": "no"}, {"type": "text", "text": "net"}]
    )
    assert (part["text"], other["text"]) == ("Error: no", "net")


def test_thoughts_stay_apart_from_the_answer_and_unreadable_ones_are_dropped() -> None:
    (message,) = chat_messages(
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Yes."},
            ],
        }
    )
    assert message["reasoning_content"] == "hm" and message["content"][0]["text"] == "Yes."
    (empty,) = chat_messages(
        {"role": "user", "content": [{"type": "redacted_thinking", "data": "x"}]}
    )
    assert empty == {"role": "user", "content": ""}
