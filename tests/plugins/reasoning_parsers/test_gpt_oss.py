"""The channels of gpt-oss become reasoning, content and calls, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.plugins.reasoning_parsers.gpt_oss import GptOssReasoningParser
from tokenmill.plugins.tool_parsers.gpt_oss import GptOssToolParser

from ..tool_parsers.reading import BUSY, Read, cut, deltas_of, joined

NEXT = "<|end|><|start|>assistant"
CALL = (
    "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Oslo"}<|call|>'
)
CASES: list[tuple[str, Read]] = [
    (
        f"<|channel|>analysis<|message|>So.{NEXT}<|channel|>final<|message|>It is Oslo.",
        ("It is Oslo.", "So.", []),
    ),
    (
        f"<|channel|>analysis<|message|>So.{NEXT}{CALL}",
        ("", "So.", [("weather", '{"city": "Oslo"}')]),
    ),
    (
        f"<|channel|>analysis<|message|>So.{NEXT}<|channel|>commentary<|message|>I look."
        f"{NEXT}{CALL}",
        ("I look.", "So.", [("weather", '{"city": "Oslo"}')]),
    ),
    (
        f"<|channel|>analysis<|message|>So.{NEXT} to=functions.weather<|channel|>commentary json"
        "<|message|>{}<|call|>",
        ("", "So.", [("weather", "{}")]),
    ),
    ("<|channel|>analysis<|message|>cut off", ("", "cut off", [])),
    ("plain text", ("plain text", "", [])),
]


@pytest.mark.parametrize(("text", "said"), CASES)
def test_channels_are_separated(text: str, said: Read) -> None:
    assert read([text]) == said


@settings(BUSY)
@given(st.sampled_from(CASES), st.lists(st.integers(0, 200)))
def test_any_cut_gives_the_same(case: tuple[str, Read], places: list[int]) -> None:
    assert read(cut(case[0], places)) == case[1]


def read(pieces: list[str]) -> Read:
    reasoning, tools = GptOssReasoningParser(), GptOssToolParser()
    return joined(deltas_of(pieces, reasoning=reasoning, tools=tools))
