"""Anthropic's official client, against real weights on a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from ..serving import Served, serve_engine, toy_engine

ASK: Any = {
    "model": "smollm2-135m-instruct",
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
    "max_tokens": 12,
    "extra_body": {"temperature": 0},  # newer clients have no argument for it
}


@pytest.fixture(scope="module")
def client(real: Served) -> Iterator[anthropic.Anthropic]:
    ASK["model"] = real.engine.model_name
    with connect(real) as client:
        yield client


def connect(served: Served, key: str = "x") -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=served.url, api_key=key, max_retries=0, _strict_response_validation=True
    )


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content)


def test_a_message_is_what_chat_completions_answer(
    client: anthropic.Anthropic, real: Served
) -> None:
    system = "You are a poet."
    message = client.messages.create(system=system, **ASK)
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="x") as other:
        messages: Any = [{"role": "system", "content": system}, *ASK["messages"]]
        options: Any = {"max_tokens": 12, "temperature": 0}
        chat = other.chat.completions.create(model=ASK["model"], messages=messages, **options)
    assert chat.usage is not None
    assert text_of(message) == chat.choices[0].message.content
    assert (message.role, message.stop_reason) == ("assistant", "max_tokens")
    read = message.usage.cache_read_input_tokens or 0
    assert message.usage.input_tokens + read == chat.usage.prompt_tokens
    assert message.usage.output_tokens == chat.usage.completion_tokens == 12


def test_a_streamed_message_adds_up_to_the_whole_one(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ASK)
    with client.messages.stream(**ASK) as stream:
        deltas = list(stream.text_stream)
        message = stream.get_final_message()
    assert len(deltas) > 3
    assert "".join(deltas) == text_of(message) == text_of(whole)
    assert message.stop_reason == whole.stop_reason
    assert message.usage.output_tokens == whole.usage.output_tokens


def test_a_stop_sequence_ends_the_message_and_is_named(client: anthropic.Anthropic) -> None:
    text = text_of(client.messages.create(**ASK))
    stop = text[5:8]
    message = client.messages.create(stop_sequences=["never found", stop], **ASK)
    assert text_of(message) == text[: text.index(stop)]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    with client.messages.stream(stop_sequences=[stop], **ASK) as stream:
        streamed = stream.get_final_message()
    assert text_of(streamed) == text_of(message)
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", stop)


def test_system_and_content_may_be_blocks(client: anthropic.Anthropic) -> None:
    def count(system: Any, content: Any) -> int:
        messages = [{"role": "user", "content": content}]
        options: Any = {"model": ASK["model"], "system": system, "messages": messages}
        return client.messages.count_tokens(**options).input_tokens

    def block(text: str) -> dict[str, Any]:
        return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}

    assert count("Be kind.", "Hello") == count([block("Be kind.")], [block("Hello")])
    assert count("Be kind.", "a\nb") == count("Be kind.", [block("a"), block("b")])


def test_counted_tokens_are_those_of_the_prompt(client: anthropic.Anthropic) -> None:
    usage = client.messages.create(**ASK).usage
    counted = client.messages.count_tokens(model=ASK["model"], messages=ASK["messages"])
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_the_assistant_s_last_words_are_continued(client: anthropic.Anthropic) -> None:
    text = text_of(client.messages.create(**ASK))
    cut = text.rindex(" ")  # the next token begins with the space
    begun = {"role": "assistant", "content": text[:cut]}
    options = ASK | {"messages": [*ASK["messages"], begun]}
    assert text_of(client.messages.create(**options)).startswith(text[cut:])


def test_errors_become_the_client_s_exceptions(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="claude"):
        client.messages.create(**ASK | {"model": "claude"})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens") as bad:
        client.messages.create(**ASK | {"max_tokens": 5_000})
    assert isinstance(bad.value.body, dict)
    assert bad.value.body["type"] == "error"
    assert bad.value.body["error"]["type"] == "invalid_request_error"


def test_the_client_s_key_is_accepted_as_it_sends_it() -> None:
    with serve_engine(toy_engine(), api_keys=("right",)) as served:
        ask = ASK | {"model": "simulated"}
        with connect(served, "right") as client:
            assert client.messages.create(**ask).content
        with (
            connect(served, "wrong") as client,
            pytest.raises(anthropic.AuthenticationError, match="does not know"),
        ):
            client.messages.create(**ask)


def test_an_answer_follows_its_schema(client: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"color": {"enum": ["blue", "green"]}, "depth": {"type": "boolean"}},
        "required": ["color", "depth"],
        "additionalProperties": False,
    }
    config: Any = {"format": {"type": "json_schema", "schema": schema}}
    message = client.messages.create(**ASK | {"max_tokens": 60}, output_config=config)
    assert message.stop_reason == "end_turn"
    found = json.loads(text_of(message))
    assert found.keys() == {"color", "depth"} and found["color"] in ("blue", "green")
