"""The suite for parsers of tool calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from ....core.contract.parsing.answer_parsers import ToolCallParser
from ....core.members import DESCRIBES_TOOLS
from ..hosting import take
from ..reporting import Report, report_time
from ..suites import suite
from . import checks
from .checks import every_seed
from .reading import STRANGER, TOOLS, Make, hard_answers, read

Calls = Sequence[tuple[str, dict[str, Any]]]


def check_it_answers_about_any_template(tool_call_parser: object) -> None:
    """`reasons_against` returns a list of texts, also for an empty template."""
    checks.check_reasons(take(tool_call_parser))


def check_its_own_answers_are_read(
    tool_call_parser: object, answers: Sequence[tuple[str, Calls]] = ()
) -> None:
    """The calls of the given answers are found, with arguments that are JSON objects."""
    for text, calls in answers:
        found = read(_tools(tool_call_parser), [text])
        given = [(name, json.loads(arguments)) for name, arguments in found.calls]
        assert given == list(calls), f"calls in {text!r}"


def check_plain_text_is_content(tool_call_parser: object) -> None:
    """An answer without calls arrives unchanged."""
    checks.check_plain(_tools(tool_call_parser))


@every_seed
def check_cuts_change_nothing(tool_call_parser: object, seed: int) -> None:
    """The same text in other pieces gives the same content and calls."""
    checks.check_cuts(_tools(tool_call_parser), seed)


@every_seed
def check_calls_are_in_order_and_of_known_functions(tool_call_parser: object, seed: int) -> None:
    """Calls are numbered from 0, begin with a name, and name a function of the request."""
    names = {tool.name for tool in TOOLS}
    for text in hard_answers(seed):
        found = read(_tools(tool_call_parser), [text])
        assert not found.faults, f"{found.faults[0]}, in {text!r}"
        wrong = [name for name, _ in found.calls if name not in names]
        assert not wrong, f"{wrong} are no functions of the request, in {text!r}"


def check_calls_in_its_syntax_are_read(tool_call_parser: object) -> None:
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


@every_seed
def check_calls_of_other_functions_are_content(tool_call_parser: object, seed: int) -> None:
    """If nothing may be called, all text but whitespace is content."""
    for text in hard_answers(seed):
        found = read(_tools(tool_call_parser, STRANGER), [text])
        assert not found.calls, f"a call of a function that is not there, in {text!r}"
        assert "".join(found.content.split()) == "".join(text.split())


def check_answers_do_not_disturb_each_other(tool_call_parser: object) -> None:
    """Several answers are read at the same time by one parser."""
    checks.check_several(_tools(tool_call_parser))


def check_time_is_reported(tool_call_parser: object, report: Report) -> None:
    """Report the time for a piece of text. There is no limit."""
    report_time(report, "parse(), per piece", checks.seconds_per_piece(_tools(tool_call_parser)))


@suite
class ToolCallParserConformance:
    """The suite for a tool call parser.

    Subclass it as Test..., with a fixture `tool_call_parser` that returns the parser, or a function
    that makes it. A fixture `answers` may return pairs of an answer's text and its calls of the
    functions weather and clock: [(text, [(name, arguments)])].
    """


def _tools(given: object, tools: Sequence[Any] = TOOLS) -> Make:
    return partial(cast(ToolCallParser, take(given)).parse, tools=tools)
