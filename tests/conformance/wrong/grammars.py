"""Wrong grammar backends: each makes one mistake that llguidance's does not make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tokenmill.backends.grammar.base import GrammarSpec, MaskedRows, Masks
from tokenmill.backends.grammar.llguidance.backend import Compiled, Following, LLGuidance
from tokenmill.core.requests.grammar import Grammar
from tokenmill.testing.conformance.computing import grammar as suite

from . import fails


class Wrapped(Following):
    """A matcher whose methods may differ from the right ones."""


class CompiledTo:
    """A compiled grammar with matchers of another class."""

    def __init__(self, right: Compiled, kind: type[Following]) -> None:
        self._right, self._kind = right, kind

    @property
    def ignored(self) -> Sequence[str]:
        return self._right.ignored

    def matcher(self) -> Following:
        right = self._right.matcher()
        return self._kind(right.inner, right._end_ids)


def _has_ended(row: MaskedRows) -> bool:
    assert isinstance(row.matcher, Following)
    return row.matcher._has_ended or row.matcher.inner.stop_reason() == "EndOfSentence"


def with_matcher(kind: type[Following]) -> type[LLGuidance]:
    class Backend(LLGuidance):
        def compile(self, grammar: Grammar) -> Any:
            return CompiledTo(super().compile(grammar), kind)

    return Backend


@fails(suite.check_reasons_are_returned_for_any_vocabulary)
class RaisesWithoutAnEnd(LLGuidance):
    @classmethod
    def reasons_against(cls, spec: GrammarSpec) -> list[str]:
        assert spec.end_ids
        return []


@fails(suite.check_masks_allow_exactly_what_may_come_next)
class AllowsControlTokens(LLGuidance):
    def __init__(self, spec: GrammarSpec) -> None:
        super().__init__(
            GrammarSpec(
                token_bytes=spec.token_bytes, special_ids=spec.end_ids, end_ids=spec.end_ids
            )
        )


@fails(suite.check_after_the_end_only_end_tokens_are_allowed)
class ForgetsTheEnd(LLGuidance):
    """All tokens are allowed once the answer has ended."""

    def fill(self, rows: Sequence[MaskedRows], masks_rw: Masks) -> None:
        going_on = [row for row in rows if not _has_ended(row)]
        super().fill(going_on, masks_rw)


@fails(suite.check_rows_after_drafts_follow_the_drafts)
class IgnoresDrafts(LLGuidance):
    """The rows after drafts get the mask of the first row."""

    def fill(self, rows: Sequence[MaskedRows], masks_rw: Masks) -> None:
        for row in rows:
            end = row.first_row + 1 + len(row.draft_token_ids)
            alone = MaskedRows(matcher=row.matcher, first_row=row.first_row, draft_token_ids=())
            super().fill([alone], masks_rw)
            masks_rw[row.first_row : end] = masks_rw[row.first_row]


@fails(suite.check_counting_allowed_tokens_changes_nothing)
def accepts_what_it_counts() -> Any:
    class Matcher(Wrapped):
        def count_allowed(self, token_ids: Sequence[int]) -> int:
            count = super().count_allowed(token_ids)
            self.accept(token_ids[:count])
            return count

    return with_matcher(Matcher)


@fails(suite.check_a_matcher_is_rebuilt_from_tokens)
def accepts_one_token_of_several() -> Any:
    class Matcher(Wrapped):
        def accept(self, token_ids: Sequence[int]) -> None:
            super().accept(token_ids[:1] if 195 in token_ids else token_ids)

    return with_matcher(Matcher)


@fails(suite.check_answers_do_not_influence_each_other)
class WritesRowsOfOthers(LLGuidance):
    def fill(self, rows: Sequence[MaskedRows], masks_rw: Masks) -> None:
        if len(rows) > 1:
            masks_rw[:] = 0
        super().fill(rows, masks_rw)


@fails(suite.check_a_forbidden_token_ends_one_answer)
def forgets_errors() -> Any:
    class Matcher(Wrapped):
        @property
        def error(self) -> str | None:
            return None

    return with_matcher(Matcher)


@fails(suite.check_a_wrong_grammar_is_refused_with_a_reason, raises=ValueError)
class RaisesValueError(LLGuidance):
    def compile(self, grammar: Grammar) -> Any:
        try:
            return super().compile(grammar)
        except Exception as error:
            raise ValueError(str(error)) from error


@fails(suite.check_whitespace_of_json_is_the_grammars)
class IgnoresWhitespace(LLGuidance):
    def compile(self, grammar: Grammar) -> Any:
        return super().compile(replace(grammar, whitespace=None))
