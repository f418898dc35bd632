"""Tools and reasoning of messages, whole and streamed, read by Anthropic's official client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from ..scripted import ScriptedExecutor, scripted_server
from ..serving import Served
from ..test_tools import CALL, CLOCK_CALL

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: Any = [
    {"name": "weather", "description": "The weather of a city.", "input_schema": SCHEMA},
    {"name": "clock", "input_schema": {"type": "object"}},
]
ASK: Any = {
    "messages": [{"role": "user", "content": "How is it in Oslo?"}],
    "max_tokens": 400,
    "tools": TOOLS,
}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Served, ScriptedExecutor]]:
    with scripted_server() as started:
        yield started


@pytest.fixture
def model(server: tuple[Served, ScriptedExecutor]) -> ScriptedExecutor:
    return server[1]


@pytest.fixture
def client(server: tuple[Served, ScriptedExecutor]) -> Iterator[anthropic.Anthropic]:
    ASK["model"] = server[0].engine.model_name
    with anthropic.Anthropic(
        base_url=server[0].url, api_key="x", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def blocks(message: Any) -> list[tuple[Any, ...]]:
    """Each block as its type and its content."""
    fields = {"text": ("text",), "thinking": ("thinking",), "tool_use": ("name", "input")}
    return [(b.type, *(getattr(b, name) for name in fields[b.type])) for b in message.content]


def test_calls_are_blocks_and_the_reason_of_the_stop(
    client: anthropic.Anthropic, model: ScriptedExecutor
) -> None:
    model.says = "I look." + CALL + CLOCK_CALL
    message = client.messages.create(**ASK)
    expected = [
        ("text", "I look."),
        ("tool_use", "weather", {"city": "Oslo", "days": 2}),
        ("tool_use", "clock", {}),
    ]
    assert blocks(message) == expected and message.stop_reason == "tool_use"
    with client.messages.stream(**ASK) as stream:
        streamed = stream.get_final_message()
    assert blocks(streamed) == expected and streamed.stop_reason == "tool_use"
    ids = [block.id for block in streamed.content if block.type == "tool_use"]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("max_tokens", [60, 98, 400])
def test_blocks_come_in_the_order_of_the_answer_whole_and_streamed(
    client: anthropic.Anthropic, model: ScriptedExecutor, max_tokens: int
) -> None:
    model.says = "I look." + CALL + "Now I wait." + CLOCK_CALL
    fields = ASK | {"max_tokens": max_tokens}
    whole = client.messages.create(**fields)
    kinds = [block.type for block in whole.content]
    assert ["text", "tool_use", "text", "tool_use"][: len(kinds)] == kinds
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in streamed.content] == kinds
    assert streamed.stop_reason == whole.stop_reason
    if max_tokens == 400:
        assert blocks(streamed) == blocks(whole)


def test_one_call_at_a_time_and_no_calls_are_obeyed(
    client: anthropic.Anthropic, model: ScriptedExecutor
) -> None:
    model.says = CALL + CLOCK_CALL
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(client.messages.create(tool_choice=choice, **ASK).content) == 1
    message = client.messages.create(tool_choice={"type": "none"}, **ASK)
    assert blocks(message) == [("text", model.says)] and message.stop_reason == "end_turn"


def test_reasoning_is_a_block_before_the_answer(
    client: anthropic.Anthropic, model: ScriptedExecutor
) -> None:
    model.says = "<think>It is cold.</think>Yes."
    expected = [("thinking", "It is cold."), ("text", "Yes.")]
    whole = client.messages.create(**ASK)
    with client.messages.stream(**ASK) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert blocks(message) == expected
        details = message.usage.output_tokens_details
        assert details and details.thinking_tokens == len("It is cold.")  # a character is a token


def test_a_call_that_is_cut_has_no_input(
    client: anthropic.Anthropic, model: ScriptedExecutor
) -> None:
    model.says = CALL
    message = client.messages.create(**ASK | {"max_tokens": len(CALL) - 30})
    assert message.stop_reason == "max_tokens"
    assert all(found[-1] == {} for found in blocks(message) if found[0] == "tool_use")


def test_tools_calls_and_results_reach_the_prompt(client: anthropic.Anthropic) -> None:
    def count(**fields: Any) -> int:
        options = {"model": ASK["model"], "messages": ASK["messages"]} | fields
        return client.messages.count_tokens(**options).input_tokens

    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}
    history: Any = [
        *ASK["messages"],
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    assert count() < count(tools=TOOLS)
    assert count(tools=TOOLS, tool_choice={"type": "none"}) == count()
    assert count() < count(messages=history)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
        ({"tool_choice": {"type": "tool", "name": "dance"}}, "'dance'"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web"}]}, "'custom'"),
    ],
)
def test_wrong_tools_are_refused_with_a_reason(
    client: anthropic.Anthropic, fields: Any, words: str
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=words):
        client.messages.create(**ASK | fields)
