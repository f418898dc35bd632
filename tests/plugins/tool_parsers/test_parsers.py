"""Every family's calls are found, however the text is cut, and malformed calls are content."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.api.parsing.answer_reader import AnswerReader
from tokenmill.core.contract.parsing.answer_parsers import ToolCallParser
from tokenmill.core.contract.parsing.answers import ContentDelta, ToolDefinition
from tokenmill.plugins.tool_parsers.gemma import GemmaToolParser
from tokenmill.plugins.tool_parsers.generic import GenericToolParser
from tokenmill.plugins.tool_parsers.gpt_oss import GptOssToolParser
from tokenmill.plugins.tool_parsers.hermes import HermesToolParser
from tokenmill.plugins.tool_parsers.llama3_json import Llama3ToolParser
from tokenmill.plugins.tool_parsers.mistral import MistralToolParser
from tokenmill.plugins.tool_parsers.pythonic import PythonicToolParser
from tokenmill.plugins.tool_parsers.xml import GLM, QWEN

from .corpus import CORPUS, MALFORMED, Calls
from .reading import BUSY, TOOLS, cut, deltas_of, joined

PARSERS: dict[str, ToolCallParser] = {
    "hermes": HermesToolParser(),
    "llama3-json": Llama3ToolParser(),
    "mistral": MistralToolParser(),
    "gemma": GemmaToolParser(),
    "pythonic": PythonicToolParser(),
    "qwen3-xml": QWEN,
    "glm": GLM,
    "gpt-oss": GptOssToolParser(),
    "generic": GenericToolParser(),
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


@pytest.mark.parametrize(("name", "text", "content", "calls"), EVERY)
def test_an_answer_that_is_cut_after_its_calls_has_no_more_content_than_the_whole(
    name: str, text: str, content: str, calls: Calls
) -> None:
    whole = joined(deltas_of([text + "\n" * bool(calls)], tools=PARSERS[name]))
    assert whole[0].rstrip() == content
    for length in range(len(text)):
        found = joined(deltas_of([text[:length]], tools=PARSERS[name]))
        if calls and found[2] == whole[2]:
            assert content.startswith(found[0]), text[:length]


@pytest.mark.parametrize("name", ["hermes", "llama3-json", "mistral"])
def test_arguments_come_while_they_are_written(name: str) -> None:
    text = CORPUS[name][0][0]
    pieces = [d for d in deltas_of(text, tools=PARSERS[name]) if not isinstance(d, ContentDelta)]
    assert len(pieces) > 10


def test_a_name_that_does_not_end_is_shown_while_it_comes() -> None:
    text = f"[TOOL_CALLS]{'a' * 400}"
    parser = PARSERS["mistral"]
    pieces = [delta for delta in AnswerReader(tool_calls=parser, tools=TOOLS).feed(text)]
    assert joined(pieces) == (text, "", [])


LONG = 1_000_000
"""Characters. Reading such a text anew for each of its markers would take minutes."""
HOSTILE = [
    ("qwen3-xml", "<tool_call><function=weather>", "<parameter=a>"),
    ("qwen3-xml", "", "<tool_call><function=weather>"),
    ("qwen3-xml", "", "<tool_call>"),
    ("glm", "<tool_call>weather", "<arg_key>a</arg_key><arg_value>"),
    ("gemma", "<|tool_call>call:weather{a:", '<|"|>'),
    ("gemma", "", "<|tool_call>call:weather{"),
]


@pytest.mark.parametrize(("name", "begin", "repeated"), HOSTILE)
def test_a_long_answer_is_not_read_anew_for_each_marker(
    name: str, begin: str, repeated: str
) -> None:
    text = begin + repeated * (LONG // len(repeated))
    content, _, calls = joined(deltas_of([text], tools=PARSERS[name]))
    assert content == text or len(calls) == 1


def test_a_failed_call_does_not_hide_one_in_it() -> None:
    inner = "<|tool_call>call:find-it{}<tool_call|>"
    failed = "<|tool_call>call:weather{ <|tool_call>call:weather{a:"
    found = joined(deltas_of([f"{failed} {inner}"], tools=PARSERS["gemma"]))
    assert found == (failed, "", [("find-it", "{}")])


ARGUMENTS = {
    "text": ({"type": "string"}, "12"),
    "optional": ({"type": ["string", "null"]}, "12"),
    "any_of": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "12"),
    "enum": ({"enum": ["1", "12"]}, "12"),
    "const": ({"const": "12"}, "12"),
    "untyped": ({"description": "a street number"}, "12"),
    "referred": ({"$ref": "#/$defs/code"}, "12"),
    "missing": ({"$ref": "#/$defs/none"}, "12"),
    "number": ({"type": "number"}, 12),
    "either": ({"type": ["string", "integer"]}, 12),
    "list": ({"type": "array"}, 12),
}


@pytest.mark.parametrize("name", ["qwen3-xml", "glm"])
def test_an_argument_is_text_where_the_schema_allows_text(name: str) -> None:
    properties = {key: schema for key, (schema, _) in ARGUMENTS.items()}
    schema = {"properties": properties, "$defs": {"code": {"type": "string"}}}
    tool = ToolDefinition(name="weather", parameters=schema)
    texts = dict.fromkeys([*ARGUMENTS, "unknown"], "12") | {"list": "x"}
    if name == "glm":
        body = "".join(
            f"<arg_key>{key}</arg_key><arg_value>{text}</arg_value>" for key, text in texts.items()
        )
        answer = f"<tool_call>weather{body}</tool_call>"
    else:
        body = "".join(f"<parameter={key}>\n{text}\n</parameter>" for key, text in texts.items())
        answer = f"<tool_call><function=weather>{body}</function></tool_call>"
    (call,) = joined(deltas_of([answer], tools=PARSERS[name], offered=[tool]))[2]
    expected = {key: value for key, (_, value) in ARGUMENTS.items()}
    assert json.loads(call[1]) == expected | {"unknown": 12, "list": "x"}


def test_null_is_a_value_where_the_schema_names_it() -> None:
    tool = ToolDefinition(
        name="weather", parameters={"properties": {"city": {"type": ["string", "null"]}}}
    )
    answer = "<tool_call>weather<arg_key>city</arg_key><arg_value>null</arg_value></tool_call>"
    (call,) = joined(deltas_of([answer], tools=PARSERS["glm"], offered=[tool]))[2]
    assert json.loads(call[1]) == {"city": None}
