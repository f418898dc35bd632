"""Tools and reasoning of responses, whole and streamed, read by OpenAI's official client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from ..scripted import ScriptedExecutor, scripted_server
from ..serving import Served
from ..test_tools import CALL, CLOCK_CALL

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: Any = [
    {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False},
    {"type": "function", "name": "clock", "parameters": None, "strict": None},
]
QUESTION = "How is it in Oslo?"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Served, ScriptedExecutor]]:
    with scripted_server() as started:
        yield started


@pytest.fixture
def model(server: tuple[Served, ScriptedExecutor]) -> ScriptedExecutor:
    return server[1]


@pytest.fixture
def client(server: tuple[Served, ScriptedExecutor]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server[0].url}/v1",
        api_key="x",
        max_retries=0,
        _strict_response_validation=True,
    ) as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    options = {"model": "simulated", "input": QUESTION, "tools": TOOLS, "max_output_tokens": 400}
    return client.responses.create(**options | fields)


def items(response: Any) -> list[tuple[str, ...]]:
    """Each item as its type and its content."""
    found: list[tuple[str, ...]] = []
    for item in response.output:
        if item.type == "function_call":
            found.append((item.type, item.name, item.arguments))
        else:
            found.append((item.type, "".join(part.text for part in item.content)))
    return found


def test_calls_are_items_of_their_own(client: openai.OpenAI, model: ScriptedExecutor) -> None:
    model.says = "I look." + CALL + CLOCK_CALL
    response = ask(client)
    assert items(response) == [
        ("message", "I look."),
        ("function_call", "weather", '{"city": "Oslo", "days": 2}'),
        ("function_call", "clock", "{}"),
    ]
    assert response.status == "completed"
    assert [tool.name for tool in response.tools] == ["weather", "clock"]
    ids = [item.call_id for item in response.output if item.type == "function_call"]
    assert len(set(ids)) == 2
    model.says = CALL
    assert [kind for kind, *_ in items(ask(client))] == ["function_call"]
    assert [kind for kind, *_ in items(ask(client, tool_choice="none"))] == ["message"]


def test_the_events_of_each_item_add_up_to_it(
    client: openai.OpenAI, model: ScriptedExecutor
) -> None:
    model.says = "<think>It is cold.</think>I look." + CALL + CLOCK_CALL
    whole = ask(client)
    events = list(ask(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed" and items(last.response) == items(whole)
    assert [kind for kind, *_ in items(whole)] == ["reasoning", "message"] + ["function_call"] * 2
    for index, item in enumerate(last.response.output):
        own = [event for event in events if getattr(event, "output_index", None) == index]
        assert own[0].type == "response.output_item.added" and own[0].item.id == item.id
        assert own[-1].type == "response.output_item.done" and own[-1].item == item
        text = "".join(event.delta for event in own if event.type.endswith(".delta"))
        assert text == items(last.response)[index][-1]
        ends = [e.type for e in own if e.type.endswith("_text.done") or "arguments.done" in e.type]
        assert len(ends) == 1


@pytest.mark.parametrize("max_output_tokens", [1, 12, 60, 85, 98, 104, 130])
def test_a_cut_response_is_the_same_whole_and_streamed(
    client: openai.OpenAI, model: ScriptedExecutor, max_output_tokens: int
) -> None:
    model.says = "I look." + CALL + "Now I wait." + CLOCK_CALL
    whole = ask(client, max_output_tokens=max_output_tokens)
    *_, last = ask(client, max_output_tokens=max_output_tokens, stream=True)
    assert last.type == "response.incomplete"
    assert items(last.response) == items(whole)
    for response in (whole, last.response):
        assert response.status == "incomplete" and response.completed_at is None
        assert response.incomplete_details.reason == "max_output_tokens"
        *complete, cut = (item.status for item in response.output)
        assert cut == "incomplete" and set(complete) <= {"completed"}


def test_items_come_in_the_order_of_the_answer(
    client: openai.OpenAI, model: ScriptedExecutor
) -> None:
    model.says = "I look." + CALL + "Now I wait." + CLOCK_CALL
    *_, last = ask(client, stream=True)
    for response in (ask(client), last.response):
        kinds = ["message", "function_call", "message", "function_call"]
        assert [kind for kind, *_ in items(response)] == kinds


def test_calls_and_their_results_go_back_as_items(
    client: openai.OpenAI, server: tuple[Served, ScriptedExecutor], model: ScriptedExecutor
) -> None:
    model.says = "<think>It is cold.</think>" + CALL
    first = ask(client)
    call = next(item for item in first.output if item.type == "function_call")
    model.says = "It is sunny."
    history: Any = [
        {"role": "user", "content": QUESTION},
        *[item.model_dump() for item in first.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    second = ask(client, input=history)
    assert items(second) == [("message", "It is sunny.")]
    assert second.usage.input_tokens > first.usage.input_tokens


def test_wrong_tools_are_refused_with_a_reason(client: openai.OpenAI) -> None:
    choice = {"type": "function", "name": "dance"}
    for fields, words in (
        ({"tool_choice": choice}, "'dance'"),
        ({"tools": [{"type": "web_search"}]}, "'function'"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            ask(client, **fields)
