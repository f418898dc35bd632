"""Wrong grammar backends: each makes one mistake that llguidance's does not make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tokenmill.backends.grammar.base import GrammarSpec, MaskedRows, Masks
from tokenmill.backends.grammar.llguidance.backend import Compiled, Following, LLGuidance
from tokenmill.core.requests.grammar import Grammar
from tokenmill.testing import GrammarConformance


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


class TestRaisesWithoutAnEnd(GrammarConformance):
    fails = "test_reasons_are_told_for_any_vocabulary"

    @pytest.fixture
    def grammar_backend(self) -> Any:
        class Backend(LLGuidance):
            @classmethod
            def reasons_against(cls, spec: GrammarSpec) -> list[str]:
                assert spec.end_ids
                return []

        return Backend


class TestAllowsControlTokens(GrammarConformance):
    fails = "test_masks_allow_exactly_what_may_come_next"

    @pytest.fixture
    def grammar_backend(self) -> Any:
        class Backend(LLGuidance):
            def __init__(self, spec: GrammarSpec) -> None:
                super().__init__(
                    GrammarSpec(
                        token_bytes=spec.token_bytes, special_ids=spec.end_ids, end_ids=spec.end_ids
                    )
                )

        return Backend


class TestForgetsTheEnd(GrammarConformance):
    """All tokens are allowed once the answer has ended."""

    fails = "test_after_the_end_only_end_tokens_are_allowed"

    @pytest.fixture
    def grammar_backend(self) -> Any:
        class Backend(LLGuidance):
            def fill(self, rows: Sequence[MaskedRows], masks_rw: Masks) -> None:
                going_on = [row for row in rows if not _has_ended(row)]
                super().fill(going_on, masks_rw)

        return Backend


class TestIgnoresDrafts(GrammarConformance):
    """The rows after drafts get the mask of the first row."""

    fails = "test_rows_after_drafts_follow_the_drafts"

    @pytest.fixture
    def grammar_backend(self) -> Any:
        class Backend(LLGuidance):
            def fill(self, rows: Sequence[MaskedRows], masks_rw: Masks) -> None:
                for row in rows:
                    end = row.first_row + 1 + len(row.draft_token_ids)
                    alone = MaskedRows(
                        matcher=row.matcher, first_row=row.first_row, draft_token_ids=()
                    )
                    super().fill([alone], masks_rw)
                    masks_rw[row.first_row : end] = masks_rw[row.first_row]

        return Backend


class TestAcceptsWhatItCounts(GrammarConformance):
    fails = "test_counting_allowed_tokens_changes_nothing"

    @pytest.fixture
    def grammar_backend(self) -> Any:
        class Matcher(Wrapped):
            def count_allowed(self, token_ids: Sequence[int]) -> int:
                count = super().count_allowed(token_ids)
                self.accept(token_ids[:count])
                return count

        return with_matcher(Matcher)


class TestAcceptsOneTokenOfSeveral(GrammarConformance):
    fails = "test_a_matcher_is_rebuilt_from_tokens"

    @pytest.fixture
    def grammar_backend(self) -> Any:
        class Matcher(Wrapped):
            def accept(self, token_ids: Sequence[int]) -> None:
                super().accept(token_ids[:1] if 195 in token_ids else token_ids)

        return with_matcher(Matcher)


class TestWritesRowsOfOthers(GrammarConformance):
    fails = "test_answers_do_not_influence_each_other"

    @pytest.fixture
    def grammar_backend(self) -> Any:
        class Backend(LLGuidance):
            def fill(self, rows: Sequence[MaskedRows], masks_rw: Masks) -> None:
                if len(rows) > 1:
                    masks_rw[:] = 0
                super().fill(rows, masks_rw)

        return Backend


class TestForgetsErrors(GrammarConformance):
    fails = "test_a_forbidden_token_ends_one_answer"

    @pytest.fixture
    def grammar_backend(self) -> Any:
        class Matcher(Wrapped):
            @property
            def error(self) -> str | None:
                return None

        return with_matcher(Matcher)


class TestRaisesValueError(GrammarConformance):
    fails = "test_a_wrong_grammar_is_refused_with_a_reason"

    @pytest.fixture
    def grammar_backend(self) -> Any:
        class Backend(LLGuidance):
            def compile(self, grammar: Grammar) -> Any:
                try:
                    return super().compile(grammar)
                except Exception as error:
                    raise ValueError(str(error)) from error

        return Backend


class TestIgnoresWhitespace(GrammarConformance):
    fails = "test_whitespace_of_json_is_the_grammars"

    @pytest.fixture
    def grammar_backend(self) -> Any:
        class Backend(LLGuidance):
            def compile(self, grammar: Grammar) -> Any:
                return super().compile(replace(grammar, whitespace=None))

        return Backend
