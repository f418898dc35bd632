"""The suite for grammar backends: masks and matchers, compared with the texts of a grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..computing import LazyModule

if TYPE_CHECKING:
    from . import checks
    from .checks import BackendClass
else:
    checks = LazyModule(f"{__package__}.checks")


class GrammarConformance:
    """The suite for a grammar backend.

    Subclass it as Test..., with a fixture `grammar_backend` that returns the backend's class.
    """

    def test_reasons_are_told_for_any_vocabulary(self, grammar_backend: BackendClass) -> None:
        """`reasons_against` returns a list of texts, and does not raise."""
        checks.check_reasons(grammar_backend)

    def test_masks_allow_exactly_what_may_come_next(self, grammar_backend: BackendClass) -> None:
        """Also parts of a character, and end tokens where an answer may end; no control tokens."""
        checks.check_masks(grammar_backend)

    def test_after_the_end_only_end_tokens_are_allowed(self, grammar_backend: BackendClass) -> None:
        """A step that was planned before the end is known still asks for a mask."""
        checks.check_ends(grammar_backend)

    def test_rows_after_drafts_follow_the_drafts(self, grammar_backend: BackendClass) -> None:
        """Verification samples the row after each draft as if the draft was accepted."""
        checks.check_drafts(grammar_backend)

    def test_counting_allowed_tokens_changes_nothing(self, grammar_backend: BackendClass) -> None:
        """Drafts are cut before they are verified, and may all be rejected."""
        checks.check_counts(grammar_backend)

    def test_a_matcher_is_rebuilt_from_tokens(self, grammar_backend: BackendClass) -> None:
        """After a preemption all tokens of the answer come at once."""
        checks.check_rebuilding(grammar_backend)

    def test_answers_do_not_influence_each_other(self, grammar_backend: BackendClass) -> None:
        """Matchers of one grammar are independent, and only their own rows are written."""
        checks.check_independence(grammar_backend)

    def test_a_forbidden_token_ends_one_answer(self, grammar_backend: BackendClass) -> None:
        """It is an error of the matcher, not an exception, and stays."""
        checks.check_forbidden_tokens(grammar_backend)

    def test_a_wrong_grammar_is_refused_with_a_reason(self, grammar_backend: BackendClass) -> None:
        """GrammarError carries a message for the client."""
        checks.check_refusals(grammar_backend)

    def test_whitespace_of_json_is_the_grammars(self, grammar_backend: BackendClass) -> None:
        """Also where there is none; or GrammarError."""
        checks.check_whitespace(grammar_backend)
