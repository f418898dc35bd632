"""The grammar backend that uses llguidance (https://github.com/guidance-ai/llguidance).

llguidance.torch is not used: importing it runs torch.compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import llguidance
from llguidance.numpy import (
    fill_next_token_bitmask_par,
    fill_next_token_bitmask_par_with_draft_tokens,
)

from ....core.requests.grammar import Grammar
from ..base import GrammarError, GrammarSpec, MaskedRows, Masks, Matcher
from .errors import explain, name_ignored
from .translating import translate

MAX_LEXER_STATES = 50_000
"""Each state takes 1 to 2 kB of an answer. Public schemas need at most a few thousand states."""


class LLGuidance:
    """A GrammarBackend. Errors of its matchers are states, not exceptions."""

    name = "llguidance"

    @classmethod
    def reasons_against(cls, spec: GrammarSpec) -> list[str]:
        return [] if spec.end_ids else ["the model names no token that ends an answer"]

    def __init__(self, spec: GrammarSpec) -> None:
        self._tokenizer = llguidance.LLTokenizer(
            _Tokens(spec),  # type: ignore[arg-type]
            n_vocab=len(spec.token_bytes),
            eos_token=list(spec.end_ids),
        )
        self._end_ids = frozenset(spec.end_ids)
        self._threads = llguidance.LLExecutor()
        self._limits = llguidance.LLParserLimits(
            max_lexer_states=MAX_LEXER_STATES, verbose_errors=False
        )

    def compile(self, grammar: Grammar) -> Compiled:
        text = translate(grammar)
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(explain(matcher.get_error()))
        ignored = name_ignored(matcher.get_grammar_warnings())
        return Compiled(matcher, ignored, self._end_ids)

    def fill(self, rows: Sequence[MaskedRows], masks_rw: Masks) -> None:
        """See GrammarBackend. llguidance's own threads share the rows."""
        found = [(_inner(row.matcher), row.first_row, list(row.draft_token_ids)) for row in rows]
        plain = [(inner, row) for inner, row, drafts in found if not drafts]
        drafted = [one for one in found if one[2]]
        if plain:
            fill_next_token_bitmask_par(self._threads, plain, masks_rw)
        if drafted:
            fill_next_token_bitmask_par_with_draft_tokens(self._threads, drafted, masks_rw)


def _inner(matcher: Matcher) -> llguidance.LLMatcher:
    assert isinstance(matcher, Following), "a backend gets its own matchers"
    return matcher.inner


class Compiled:
    """A CompiledGrammar: a matcher at the beginning of an answer, to be copied."""

    def __init__(
        self, matcher: llguidance.LLMatcher, ignored: Sequence[str], end_ids: AbstractSet[int]
    ) -> None:
        self.ignored = ignored
        self._matcher = matcher
        self._end_ids = end_ids

    def matcher(self) -> Following:
        return Following(self._matcher.deep_copy(), self._end_ids)


class Following:
    """A Matcher. llguidance stops when only the end may come next, and accepts no token then. So
    this class follows the end tokens."""

    __slots__ = ("_end_ids", "_has_ended", "inner")

    def __init__(self, inner: llguidance.LLMatcher, end_ids: AbstractSet[int]) -> None:
        self.inner = inner
        self._end_ids = end_ids
        self._has_ended = False

    @property
    def error(self) -> str | None:
        return explain(self.inner.get_error()) if self.inner.is_error() else None

    def accept(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if self._may_end_with(token_id):
                self._has_ended = True
            else:
                self.inner.consume_token(token_id)

    def count_allowed(self, token_ids: Sequence[int]) -> int:
        if token_ids and self._may_end_with(token_ids[0]):
            return 1
        return self.inner.validate_tokens(list(token_ids))

    def _may_end_with(self, token_id: int) -> bool:
        has_stopped = not self._has_ended and self.inner.is_stopped() and not self.inner.is_error()
        return has_stopped and token_id in self._end_ids


class _Tokens:
    """The tokens in the form that LLTokenizer takes."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, spec: GrammarSpec) -> None:
        self.tokens = list(spec.token_bytes)
        self.special_token_ids = list(spec.special_ids)
        self.eos_token_id = spec.end_ids[0]

    def __call__(self, text: str) -> list[int]:
        """Tokenize a text. Only forced tokens need it, which are not used here."""
        return []
