"""The suite for parsers of reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from ....core.contract.parsing.answer_parsers import ReasoningParser
from ..hosting import take
from ..reporting import Report, report_time
from ..suites import suite
from . import checks
from .checks import every_seed
from .reading import Make, read


def check_it_answers_about_any_template(reasoning_parser: object) -> None:
    """`reasons_against` returns a list of texts, also for an empty template."""
    checks.check_reasons(take(reasoning_parser))


def check_its_own_answers_are_read(
    reasoning_parser: object, answers: Sequence[tuple[str, str, str]] = ()
) -> None:
    """Reasoning and content of the given answers are separated."""
    for text, reasoning, content in answers:
        found = read(_reasoning(reasoning_parser), [text])
        assert (found.reasoning, found.content) == (reasoning, content), f"in {text!r}"


def check_plain_text_is_content(reasoning_parser: object) -> None:
    """An answer without reasoning arrives unchanged."""
    checks.check_plain(_reasoning(reasoning_parser))


@every_seed
def check_cuts_change_nothing(reasoning_parser: object, seed: int) -> None:
    """The same text in other pieces gives the same reasoning and content."""
    checks.check_cuts(_reasoning(reasoning_parser), seed)


def check_answers_do_not_disturb_each_other(reasoning_parser: object) -> None:
    """Several answers are read at the same time by one parser."""
    checks.check_several(_reasoning(reasoning_parser))


def check_time_is_reported(reasoning_parser: object, report: Report) -> None:
    """Report the time for a piece of text. There is no limit."""
    report_time(
        report, "parse(), per piece", checks.seconds_per_piece(_reasoning(reasoning_parser))
    )


@suite
class ReasoningParserConformance:
    """The suite for a reasoning parser.

    Subclass it as Test..., with a fixture `reasoning_parser` that returns the parser, or a function
    that makes it. A fixture `answers` may return triples of an answer's text, its reasoning and its
    content.
    """


def _reasoning(given: object) -> Make:
    return partial(cast(ReasoningParser, take(given)).parse, prompt_end="assistant:\n")
