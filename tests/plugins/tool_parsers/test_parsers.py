"""Every family's calls are found, however the text is cut, and malformed calls are content."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.core.contract.answer_parsers import ToolCallParser
from tokenmill.core.contract.answers import ContentDelta
from tokenmill.plugins.tool_parsers.gemma import GemmaToolParser
from tokenmill.plugins.tool_parsers.gpt_oss import GptOssToolParser
from tokenmill.plugins.tool_parsers.hermes import HermesToolParser
from tokenmill.plugins.tool_parsers.llama3_json import Llama3ToolParser
from tokenmill.plugins.tool_parsers.mistral import MistralToolParser
from tokenmill.plugins.tool_parsers.pythonic import PythonicToolParser
from tokenmill.plugins.tool_parsers.xml import GLM, QWEN

from .corpus import CORPUS, MALFORMED, Calls
from .reading import BUSY, cut, deltas_of, joined

PARSERS: dict[str, ToolCallParser] = {
    "hermes": HermesToolParser(),
    "llama3-json": Llama3ToolParser(),
    "mistral": MistralToolParser(),
    "gemma": GemmaToolParser(),
    "pythonic": PythonicToolParser(),
    "qwen3-xml": QWEN,
    "glm": GLM,
    "gpt-oss": GptOssToolParser(),
}
EVERY = [(name, *case) for name, cases in CORPUS.items() for case in cases]
BROKEN = [(name, text) for name, texts in MALFORMED.items() for text in texts]
TEXTS = [(name, text) for name, text, _, _ in EVERY] + BROKEN


@pytest.mark.parametrize(("name", "text", "content", "calls"), EVERY)
def test_calls_are_found(name: str, text: str, content: str, calls: Calls) -> None:
    found = joined(deltas_of([text], tools=PARSERS[name]))
    assert found[0] == content
    assert [(call, json.loads(arguments)) for call, arguments in found[2]] == calls


@pytest.mark.parametrize(("name", "text"), BROKEN)
def test_a_malformed_call_is_content(name: str, text: str) -> None:
    assert joined(deltas_of([text], tools=PARSERS[name])) == (text, "", [])


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_single_characters_give_the_same(name: str, text: str) -> None:
    text = text[:2000]  # the longest texts are deep rather than interesting
    parser = PARSERS[name]
    assert joined(deltas_of(text, tools=parser)) == joined(deltas_of([text], tools=parser))


@settings(BUSY)
@given(st.sampled_from(TEXTS), st.sampled_from(TEXTS), st.lists(st.integers(0, 400)))
def test_any_cut_of_any_texts_gives_the_same(
    first: tuple[str, str], second: tuple[str, str], places: list[int]
) -> None:
    parser, text = PARSERS[first[0]], first[1][:400] + second[1][:400]
    expected = joined(deltas_of([text], tools=parser))
    assert joined(deltas_of(cut(text, places), tools=parser)) == expected


@pytest.mark.parametrize(("name", "text", "content", "calls"), EVERY)
def test_no_part_of_a_marker_is_shown_as_content(
    name: str, text: str, content: str, calls: Calls
) -> None:
    shown = ""
    for delta in deltas_of(text, tools=PARSERS[name]):
        shown += delta.text if isinstance(delta, ContentDelta) else ""
        assert content.startswith(shown)


@pytest.mark.parametrize("name", ["hermes", "llama3-json", "mistral"])
def test_arguments_come_while_they_are_written(name: str) -> None:
    text = CORPUS[name][0][0]
    pieces = [d for d in deltas_of(text, tools=PARSERS[name]) if not isinstance(d, ContentDelta)]
    assert len(pieces) > 10
