"""Calls that `tool_choice` demands: the grammar fits the parser, and the real model obeys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from llguidance import LLMatcher, LLTokenizer

from tokenmill.api.chat.enforcing import grammar_of
from tokenmill.api.chat.tools import ToolUse
from tokenmill.api.parsing.answer_reader import AnswerReader
from tokenmill.core.contract.parsing.answer_parsers import ToolCallParser
from tokenmill.core.contract.parsing.answers import ToolDefinition, collect
from tokenmill.plugins.reasoning_parsers.think import MarkedReasoning
from tokenmill.plugins.tool_parsers.generic import GenericToolParser
from tokenmill.plugins.tool_parsers.hermes import HermesToolParser
from tokenmill.plugins.tool_parsers.llama3_json import Llama3ToolParser
from tokenmill.plugins.tool_parsers.mistral import MistralToolParser

from .scripted import TEMPLATE, byte_tokenizer, scripted_server
from .serving import Served
from .test_errors import chat, check_error
from .test_tools import ASK

WEATHER = ToolDefinition(
    name="weather",
    parameters={
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
CLOCK = ToolDefinition(name="clock", parameters={"type": "object", "additionalProperties": False})
ARGUMENTS = {"weather": '{"city": "Oslo", "days": 2}', "clock": "{}"}
REQUIRED = ToolUse(tools=(WEATHER, CLOCK), mode="required")
THINK = MarkedReasoning(marks=("<think>", "</think>"))
PARSERS: list[ToolCallParser] = [
    GenericToolParser(), HermesToolParser(), Llama3ToolParser(), MistralToolParser(),
]  # fmt: skip


def allows(use: ToolUse, parser: ToolCallParser, text: str, prompt_end: str = "") -> bool:
    """Whether the grammar allows a whole answer."""
    assert parser.call_syntax is not None
    grammar = grammar_of(use, parser.call_syntax, THINK, prompt_end, byte_tokenizer(TEMPLATE))
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar.text))
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def written(parser: ToolCallParser, *names: str) -> str:
    """An answer with calls of these functions."""
    syntax = parser.call_syntax
    assert syntax is not None
    calls = [syntax.begin.replace("NAME", name) + ARGUMENTS[name] + syntax.end for name in names]
    return syntax.first + syntax.between.join(calls) + syntax.last


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: type(parser).__name__)
def test_the_grammar_allows_calls_only_and_the_parser_reads_them(parser: ToolCallParser) -> None:
    for names in (("weather",), ("clock", "weather")):
        text = written(parser, *names)
        assert allows(REQUIRED, parser, text), text
        reader = AnswerReader(tool_calls=parser, tools=REQUIRED.tools)
        parsed = collect([*reader.feed(text), *reader.finish()])
        assert [(c.name, c.arguments) for c in parsed.calls] == [(n, ARGUMENTS[n]) for n in names]
        assert parsed.content is None
    assert not allows(REQUIRED, parser, "")
    assert not allows(REQUIRED, parser, "Hello.")
    assert not allows(REQUIRED, parser, written(parser, "weather").replace("Oslo", "Bonn"))


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: type(parser).__name__)
def test_arguments_that_the_schema_does_not_name_need_its_permission(
    parser: ToolCallParser,
) -> None:
    given = '{"a": 1, "b": 2}'
    for more, expected in (({}, False), ({"additionalProperties": True}, True)):
        parameters = {"properties": {"a": {"type": "integer"}}, **more}
        tool = ToolDefinition(name="weather", parameters=parameters)
        text = written(parser, "weather").replace(ARGUMENTS["weather"], given)
        assert allows(ToolUse(tools=(tool,), mode="required"), parser, text) is expected


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: type(parser).__name__)
def test_a_named_function_is_called_once_and_no_other(parser: ToolCallParser) -> None:
    named = ToolUse(tools=REQUIRED.tools, mode="required", named="clock")
    assert allows(named, parser, written(parser, "clock"))
    assert not allows(named, parser, written(parser, "weather"))
    assert not allows(named, parser, written(parser, "clock", "clock"))
    single = ToolUse(tools=REQUIRED.tools, mode="required", is_parallel=False)
    assert allows(single, parser, written(parser, "weather"))
    assert not allows(single, parser, written(parser, "weather", "clock"))


def test_a_model_may_reason_before_the_calls() -> None:
    parser = HermesToolParser()
    call = written(parser, "clock")
    assert allows(REQUIRED, parser, f"<think>\nso\n</think>\n\n{call}")
    assert allows(REQUIRED, parser, f"so\n</think>\n\n{call}", prompt_end="assistant\n<think>\n")
    assert not allows(REQUIRED, parser, call, prompt_end="assistant\n<think>\n")
    closed = "assistant\n<think>\n\n</think>\n\n"
    assert allows(REQUIRED, parser, call, prompt_end=closed)
    assert not allows(REQUIRED, parser, f"<think>so</think>{call}", prompt_end=closed)


AUTO = ToolUse(tools=(WEATHER, CLOCK), mode="auto")


@pytest.mark.parametrize("before", ["", "<think>so</think>\n", "I look it up.\n", '{"name": "x"} '])
def test_free_text_may_have_calls_and_a_call_that_has_begun_is_valid(before: str) -> None:
    parser = GenericToolParser()
    calls = written(parser, "clock", "weather")
    for text in ("", "Done.", calls, f"{calls} and so on", f"{calls}\n{calls}"):
        assert allows(AUTO, parser, before + text), text
    assert not allows(AUTO, parser, before + calls.replace("Oslo", "Bonn"))
    assert not allows(AUTO, parser, before + '{"name": "clock"}')
    assert allows(AUTO, parser, before + '{"name": "other", "arguments": 3}')


def test_reasoning_that_the_prompt_opened_comes_before_calls_in_free_text() -> None:
    parser = GenericToolParser()
    for text in ("so\n</think>\n\nDone.", f"so\n</think>\n\n{written(parser, 'clock')}", "so"):
        assert allows(AUTO, parser, text, prompt_end="assistant\n<think>\n"), text


@pytest.fixture
def client(real: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="none") as client:
        yield client


def tool(definition: ToolDefinition) -> dict[str, Any]:
    function = {"name": definition.name, "parameters": definition.parameters}
    return {"type": "function", "function": function}


ASK_REAL: dict[str, Any] = {
    "messages": [{"role": "user", "content": "How will the weather be in Rome in two days?"}],
    "tools": [tool(WEATHER), tool(CLOCK)],
    "max_tokens": 100,
    "temperature": 0,
}
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_the_real_model_calls_a_function(client: openai.OpenAI, real: Served, choice: Any) -> None:
    """The default model was not made for tools. Whole and streamed answers are the same."""
    fields = ASK_REAL | {"tool_choice": choice, "parallel_tool_calls": False}
    model = real.engine.model_name
    whole = client.chat.completions.create(model=model, **fields).choices[0]
    with client.chat.completions.stream(model=model, **fields) as stream:
        stream.until_done()
        streamed = stream.get_final_completion().choices[0]
    for found in (whole, streamed):
        assert found.message.tool_calls and not found.message.content
        (call,) = found.message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "clock" or arguments["city"] in ("Oslo", "Rome")
        assert found.finish_reason == ("tool_calls" if choice == "required" else "stop")
        if choice != "required":
            assert call.function.name == "weather"
    assert whole.message.tool_calls and streamed.message.tool_calls
    first, second = (found.message.tool_calls[0].function for found in (whole, streamed))
    assert (first.name, first.arguments) == (second.name, second.arguments)


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"response_format": {"type": "json_object"}}, "tool_choice", "cannot be combined"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True,
              "parameters": {"properties": {"a": {"type": "array", "uniqueItems": True}}}}}]},
            "tools",
            "uniqueItems",
        ),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_enforced_is_refused(
    real: Served, fields: dict[str, Any], param: str, word: str
) -> None:
    with real.client() as http:
        response = chat(http, **ASK_REAL | {"tool_choice": "required"} | fields)
    assert word in check_error(response, 400, param)["message"]


def test_a_server_without_grammars_says_so() -> None:
    with scripted_server() as (served, _), served.client() as http:
        check_error(chat(http, **ASK | {"tool_choice": "required"}), 400)
