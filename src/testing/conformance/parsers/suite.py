"""The suites for parsers of answers: tool calls and reasoning."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest

from ....core.contract.parsing.answer_parsers import ReasoningParser, ToolCallParser
from ....core.interfaces import ChatFormat
from ....core.members import DESCRIBES_TOOLS
from ..hosting import take
from ..reporting import report_time
from .reading import PLAIN, STRANGER, TOOLS, Make, Reading, cut, hard_answers, read

_SEEDS = (1, 2, 3)
Calls = Sequence[tuple[str, dict[str, Any]]]


class ToolCallParserConformance:
    """The suite for a tool call parser.

    Subclass it as Test..., with a fixture `tool_call_parser` that returns the parser, or a function
    that makes it. A fixture `answers` may return pairs of an answer's text and its calls of the
    functions weather and clock: [(text, [(name, arguments)])].
    """

    @pytest.fixture
    def answers(self) -> Sequence[tuple[str, Calls]]:
        return ()

    def test_it_answers_about_any_template(self, tool_call_parser: object) -> None:
        """`reasons_against` returns a list of texts, also for an empty template."""
        _check_reasons(take(tool_call_parser))

    def test_its_own_answers_are_read(
        self, tool_call_parser: object, answers: Sequence[tuple[str, Calls]]
    ) -> None:
        """The calls of the given answers are found, with arguments that are JSON objects."""
        for text, calls in answers:
            found = read(_tools(tool_call_parser), [text])
            given = [(name, json.loads(arguments)) for name, arguments in found.calls]
            assert given == list(calls), f"calls in {text!r}"

    def test_plain_text_is_content(self, tool_call_parser: object) -> None:
        """An answer without calls arrives unchanged."""
        _check_plain(_tools(tool_call_parser))

    @pytest.mark.parametrize("seed", _SEEDS)
    def test_cuts_change_nothing(self, tool_call_parser: object, seed: int) -> None:
        """The same text in other pieces gives the same content and calls."""
        _check_cuts(_tools(tool_call_parser), seed)

    @pytest.mark.parametrize("seed", _SEEDS)
    def test_calls_are_in_order_and_of_known_functions(
        self, tool_call_parser: object, seed: int
    ) -> None:
        """Calls are numbered from 0, begin with a name, and name a function of the request."""
        names = {tool.name for tool in TOOLS}
        for text in hard_answers(seed):
            found = read(_tools(tool_call_parser), [text])
            assert not found.faults, f"{found.faults[0]}, in {text!r}"
            wrong = [name for name, _ in found.calls if name not in names]
            assert not wrong, f"{wrong} are no functions of the request, in {text!r}"

    def test_calls_in_its_syntax_are_read(self, tool_call_parser: object) -> None:
        """Calls that `call_syntax` demands are found. A parser that describes tools needs one."""
        parser = cast(ToolCallParser, take(tool_call_parser))
        syntax, names = parser.call_syntax, [tool.name for tool in TOOLS]
        assert syntax or not DESCRIBES_TOOLS.of(parser), "call_syntax is None"
        if syntax is None:
            return
        calls = [f"{syntax.begin.replace('NAME', name)}{{}}{syntax.end}" for name in names]
        text = syntax.first + syntax.between.join(calls) + syntax.last
        found = read(_tools(parser), [text])
        assert (found.content, found.calls) == ("", [(name, "{}") for name in names]), text

    @pytest.mark.parametrize("seed", _SEEDS)
    def test_calls_of_other_functions_are_content(
        self, tool_call_parser: object, seed: int
    ) -> None:
        """If nothing may be called, all text but whitespace is content."""
        for text in hard_answers(seed):
            found = read(_tools(tool_call_parser, STRANGER), [text])
            assert not found.calls, f"a call of a function that is not there, in {text!r}"
            assert "".join(found.content.split()) == "".join(text.split())

    def test_answers_do_not_disturb_each_other(self, tool_call_parser: object) -> None:
        """Several answers are read at the same time by one parser."""
        _check_several(_tools(tool_call_parser))

    def test_time_is_reported(
        self, tool_call_parser: object, request: pytest.FixtureRequest
    ) -> None:
        """Report the time for a piece of text. There is no limit."""
        report_time(request, "parse(), per piece", _seconds(_tools(tool_call_parser)))


class ReasoningParserConformance:
    """The suite for a reasoning parser.

    Subclass it as Test..., with a fixture `reasoning_parser` that returns the parser, or a function
    that makes it. A fixture `answers` may return triples of an answer's text, its reasoning and its
    content.
    """

    @pytest.fixture
    def answers(self) -> Sequence[tuple[str, str, str]]:
        return ()

    def test_it_answers_about_any_template(self, reasoning_parser: object) -> None:
        """`reasons_against` returns a list of texts, also for an empty template."""
        _check_reasons(take(reasoning_parser))

    def test_its_own_answers_are_read(
        self, reasoning_parser: object, answers: Sequence[tuple[str, str, str]]
    ) -> None:
        """Reasoning and content of the given answers are separated."""
        for text, reasoning, content in answers:
            found = read(_reasoning(reasoning_parser), [text])
            assert (found.reasoning, found.content) == (reasoning, content), f"in {text!r}"

    def test_plain_text_is_content(self, reasoning_parser: object) -> None:
        """An answer without reasoning arrives unchanged."""
        _check_plain(_reasoning(reasoning_parser))

    @pytest.mark.parametrize("seed", _SEEDS)
    def test_cuts_change_nothing(self, reasoning_parser: object, seed: int) -> None:
        """The same text in other pieces gives the same reasoning and content."""
        _check_cuts(_reasoning(reasoning_parser), seed)

    def test_answers_do_not_disturb_each_other(self, reasoning_parser: object) -> None:
        """Several answers are read at the same time by one parser."""
        _check_several(_reasoning(reasoning_parser))

    def test_time_is_reported(
        self, reasoning_parser: object, request: pytest.FixtureRequest
    ) -> None:
        """Report the time for a piece of text. There is no limit."""
        report_time(request, "parse(), per piece", _seconds(_reasoning(reasoning_parser)))


def _tools(given: object, tools: Sequence[Any] = TOOLS) -> Make:
    return partial(cast(ToolCallParser, take(given)).parse, tools=tools)


def _reasoning(given: object) -> Make:
    return partial(cast(ReasoningParser, take(given)).parse, prompt_end="assistant:\n")


def _check_reasons(parser: Any) -> None:
    assert isinstance(parser.needs_special_tokens, bool)
    for source in ("", "{{ messages[0].content }}"):
        reasons = parser.reasons_against(ChatFormat(source=source))
        assert isinstance(reasons, list) and all(isinstance(text, str) for text in reasons)


def _check_plain(make: Make) -> None:
    for text in PLAIN:
        found = read(make, [text])
        assert found.said == (text, "", []), f"{text!r} is plain text"


def _check_cuts(make: Make, seed: int) -> None:
    rng = random.Random(seed)
    for text in hard_answers(seed):
        whole, pieces = read(make, [text]), cut(text, rng)
        found = read(make, pieces)
        assert not found.is_endless, f"parse() yields deltas without end for {text!r}"
        assert found.said == whole.said, f"the pieces {pieces} are read in another way"


def _check_several(make: Make) -> None:
    texts = hard_answers(4)
    readings = [Reading(make) for _ in texts]
    for place in range(max(map(len, texts))):
        for reading, text in zip(readings, texts, strict=True):
            reading.feed(text[place : place + 1])
    for reading, text in zip(readings, texts, strict=True):
        reading.finish()
        assert reading.said == read(make, list(text)).said, f"another answer changed {text!r}"


def _seconds(make: Make) -> float:
    """Seconds for one piece of a long answer with calls."""
    pieces = [text for text in hard_answers(5) * 20 if text]
    started = time.perf_counter()
    read(make, pieces)
    return (time.perf_counter() - started) / len(pieces)
