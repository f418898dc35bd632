"""OpenAI's official client calls /v1/responses, against real weights on a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest

from ..serving import Served

INPUT = "Tell me about the sea."
GREEDY: Any = {"max_output_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def client(real: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{real.url}/v1", api_key="x", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture(scope="module")
def model(real: Served) -> str:
    return real.engine.model_name


def chat_text(client: openai.OpenAI, model: str, messages: Any) -> str:
    chat = client.chat.completions.create(
        model=model, messages=messages, max_tokens=12, temperature=0
    )
    return chat.choices[0].message.content or ""


def test_a_response_is_what_chat_completions_answer(client: openai.OpenAI, model: str) -> None:
    response = client.responses.create(model=model, input=INPUT, instructions="Be kind.", **GREEDY)
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": INPUT}]
    assert response.output_text == chat_text(client, model, messages)
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 12
    assert response.usage.total_tokens == response.usage.input_tokens + 12
    assert (response.temperature, response.instructions) == (0, "Be kind.")


def test_a_plain_call_without_options_is_completed(client: openai.OpenAI, model: str) -> None:
    stops = {"stop": ["."]}
    response = client.responses.create(model=model, input="Say yes.", extra_body=stops)
    assert response.status == "completed" and response.output_text
    assert response.error is None


def test_a_history_of_items_is_the_chat_s_history(client: openai.OpenAI, model: str) -> None:
    first = client.responses.create(model=model, input=INPUT, **GREEDY)
    items: Any = [
        {"role": "user", "content": INPUT},
        *[item.model_dump() for item in first.output],
        {"role": "user", "content": [{"type": "input_text", "text": "And three more?"}]},
    ]
    messages = [
        {"role": "user", "content": INPUT},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And three more?"},
    ]
    second = client.responses.create(model=model, input=items, **GREEDY)
    assert second.output_text == chat_text(client, model, messages)


def test_a_stream_adds_up_to_the_whole_response(client: openai.OpenAI, model: str) -> None:
    whole = client.responses.create(model=model, input=INPUT, **GREEDY)
    with client.responses.stream(model=model, input=INPUT, **GREEDY) as stream:
        events = list(stream)
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert len(deltas) > 3 and "".join(deltas) == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
    assert last.response.usage is not None and whole.usage is not None
    assert last.response.usage.output_tokens == whole.usage.output_tokens
    raw = list(client.responses.create(model=model, input=INPUT, stream=True, **GREEDY))
    assert [event.sequence_number for event in raw] == list(range(len(raw)))


def test_logprobs_come_where_they_are_included(client: openai.OpenAI, model: str) -> None:
    options: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = client.responses.create(model=model, input=INPUT, **GREEDY, **options)
    (item,) = response.output
    assert item.type == "message" and item.content[0].type == "output_text"
    found = item.content[0].logprobs or []
    assert "".join(token.token for token in found) == response.output_text
    assert all(len(token.top_logprobs) == 2 for token in found)
    stream = client.responses.create(model=model, input=INPUT, stream=True, **GREEDY, **options)
    deltas = [event for event in stream if event.type == "response.output_text.delta"]
    assert [token.token for event in deltas for token in event.logprobs] == [
        token.token for token in found
    ]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
    ],
)
def test_what_needs_a_memory_is_refused_with_a_reason(
    client: openai.OpenAI, model: str, options: Any, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=model, input=INPUT, **options)
    assert (refused.value.param, refused.value.code) == (param, "unsupported")


class Sea(pydantic.BaseModel):
    color: Literal["blue", "green"]
    is_deep: bool


def test_a_text_follows_its_schema_whole_and_streamed(client: openai.OpenAI, model: str) -> None:
    options: Any = {"max_output_tokens": 60, "temperature": 0}
    response = client.responses.parse(model=model, input=INPUT, text_format=Sea, **options)
    assert response.status == "completed" and isinstance(response.output_parsed, Sea)
    assert response.text is not None and response.text.format is not None
    assert response.text.format.type == "json_schema"
    with client.responses.stream(model=model, input=INPUT, text_format=Sea, **options) as stream:
        assert stream.get_final_response().output_parsed == response.output_parsed
