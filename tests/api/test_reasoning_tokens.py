"""The usage of a chat counts the tokens of its reasoning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from .scripted import ScriptedExecutor, scripted_server
from .test_tools import CALL, WEATHER

THOUGHT = "It is cold: -3 °C 🙂."
NUM_TOKENS = len(THOUGHT.encode())
ASK: Any = {
    "model": "simulated",
    "messages": [{"role": "user", "content": "How is it in Oslo?"}],
    "max_tokens": 400,
}
SAYS = [
    (f"<think>\n{THOUGHT}\n</think>\n\nYes.", NUM_TOKENS),
    (f"<think>{THOUGHT}</think>" + CALL, NUM_TOKENS),
    (f"<think>{THOUGHT}", NUM_TOKENS),
    ("<think></think>Yes.", 0),
    ("Yes. <think>no</think>", 0),
]


@pytest.fixture(scope="module")
def model_and_client() -> Iterator[tuple[ScriptedExecutor, openai.OpenAI]]:
    with (
        scripted_server() as (served, model),
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client,
    ):
        yield model, client


def usages(client: openai.OpenAI, **fields: Any) -> list[Any]:
    """The details of a chat's usage, whole and streamed."""
    whole = client.chat.completions.create(**ASK | fields)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last = client.chat.completions.create(**ASK | fields | options)
    return [found.usage.completion_tokens_details for found in (whole, last)]


@pytest.mark.parametrize(("says", "count"), SAYS)
@pytest.mark.parametrize("n", [1, 2])
def test_tokens_of_the_reasoning_are_counted_without_its_marks(
    model_and_client: tuple[ScriptedExecutor, openai.OpenAI], says: str, count: int, n: int
) -> None:
    model, client = model_and_client
    model.says = says
    for details in usages(client, n=n, tools=[WEATHER]):
        assert details.reasoning_tokens == n * count


@pytest.mark.parametrize(("fields", "count"), [
    ({"max_tokens": len("<think>It is")}, len("It is")),
    ({"extra_body": {"include_reasoning": False}}, NUM_TOKENS),
    ({"extra_body": {"stream_interval": 7}}, NUM_TOKENS),
    ({"stop": ["cold"]}, len("It is ")),
])  # fmt: skip
def test_cut_hidden_and_joined_reasoning_is_counted(
    model_and_client: tuple[ScriptedExecutor, openai.OpenAI], fields: Any, count: int
) -> None:
    model, client = model_and_client
    model.says = f"<think>{THOUGHT}</think>Yes."
    for details in usages(client, **fields):
        assert details.reasoning_tokens == count


def test_responses_have_the_same_count(
    model_and_client: tuple[ScriptedExecutor, openai.OpenAI],
) -> None:
    model, client = model_and_client
    model.says = f"<think>{THOUGHT}</think>Yes."
    fields: Any = {"model": "simulated", "input": "How is it?", "max_output_tokens": 400}
    whole = client.responses.create(**fields)
    *_, last = client.responses.create(stream=True, **fields)
    for usage in (whole.usage, last.response.usage):
        assert usage.output_tokens_details.reasoning_tokens == NUM_TOKENS
