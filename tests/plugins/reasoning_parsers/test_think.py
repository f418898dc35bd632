"""Reasoning between marks is separated from content, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.core.contract.parsing.answers import ReasoningDelta
from tokenmill.plugins.reasoning_parsers.think import MarkedReasoning
from tokenmill.plugins.tool_parsers.hermes import HermesToolParser

from ..tool_parsers.reading import BUSY, cut, deltas_of, joined

THINK = MarkedReasoning(marks=("<think>", "</think>"))
CASES = [
    # (end of the prompt, answer, content, reasoning)
    ("assistant\n", "<think>\nhm\n\nwell\n</think>\n\nOslo.\n", "Oslo.\n", "hm\n\nwell"),
    ("assistant\n<think>\n", "hm\n</think>\n\nOslo.", "Oslo.", "hm"),
    ("assistant\n<think>\n\n</think>\n\n", "Oslo.", "Oslo.", ""),
    ("assistant\n", " Oslo <think> and </think>", " Oslo <think> and </think>", ""),
    ("assistant\n", "<think>cut off </thi", "", "cut off </thi"),
    ("assistant\n", "<think></think>", "", ""),
    ("assistant\n", "<thi", "<thi", ""),
]


@pytest.mark.parametrize(("prompt_end", "text", "content", "reasoning"), CASES)
def test_reasoning_is_separated(prompt_end: str, text: str, content: str, reasoning: str) -> None:
    found = joined(deltas_of([text], reasoning=THINK, prompt_end=prompt_end))
    assert found == (content, reasoning, [])


@settings(BUSY)
@given(st.sampled_from(CASES), st.lists(st.integers(0, 60)))
def test_any_cut_gives_the_same(case: tuple[str, str, str, str], places: list[int]) -> None:
    prompt_end, text, content, reasoning = case
    found = joined(deltas_of(cut(text, places), reasoning=THINK, prompt_end=prompt_end))
    assert found == (content, reasoning, [])


def test_reasoning_comes_while_it_is_written() -> None:
    deltas = list(deltas_of("<think>one two three", reasoning=THINK))
    assert sum(isinstance(delta, ReasoningDelta) for delta in deltas) > 5


def test_calls_are_found_behind_the_reasoning_and_not_in_it() -> None:
    call = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    text = f"<think>maybe {call}?</think>\n{call}"
    found = joined(deltas_of(text, reasoning=THINK, tools=HermesToolParser()))
    assert found == ("", f"maybe {call}?", [("weather", "{}")])
