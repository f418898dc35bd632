"""The suite for logits processors: their arguments, and what they do to rows of logits."""

from __future__ import annotations

from typing import Any

import pytest

from ..computing import LazyModule

checks: Any = LazyModule(f"{__package__}.checks")


class LogitsProcessorConformance:
    """The suite for a logits processor.

    Subclass it as Test..., with a fixture `logits_processor` that returns the processor's class.
    """

    @pytest.fixture
    def made(self, logits_processor: Any) -> Any:
        """A processor for the suite's model. Without one, the test is skipped."""
        try:
            return checks.make(logits_processor)
        except Exception as error:
            pytest.skip(f"it cannot be made here: {error}")

    def test_it_says_what_it_reads(self, logits_processor: Any) -> None:
        """Its attributes are valid, and `check` accepts the example; `always`: also no argument."""
        checks.check_declaration(logits_processor)

    def test_arguments_are_accepted_or_refused_with_a_value_error(
        self, logits_processor: Any
    ) -> None:
        """`check` raises nothing but ValueError, whatever JSON a client sends."""
        checks.check_refusals(logits_processor)

    def test_a_token_is_left_to_sample(self, made: Any) -> None:
        """Of each row a logit stays finite, and none becomes NaN or plus infinity."""
        checks.check_left(made)

    def test_rows_do_not_change_each_other(self, made: Any) -> None:
        """Rows of several requests get what each of them gets alone."""
        checks.check_neighbours(made)

    def test_the_same_tokens_give_the_same_logits(self, made: Any) -> None:
        """A row that is computed again, also after a preemption, gets the same logits."""
        checks.check_repeats(made)
