"""The grammars of an engine: compiled once, kept within limits, and a matcher per request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.last_used import LastUsed
from ...core.requests.grammar import Grammar
from .base import CompiledGrammar, GrammarBackend, GrammarError, MaskedRows, Masks, Matcher

MAX_COMPILED = 256
"""Compiled grammars that are kept. Each takes 130 kB, so all together take 33 MB."""
MAX_COMPILED_CHARACTERS = 1 << 19
"""Characters of their texts together. A large schema takes 50 to 90 bytes per character, so all
together take up to 50 MiB more."""
NO_BACKEND = "this engine has no grammar backend"


@dataclass(frozen=True, slots=True)
class FailedMatcher:
    """The matcher of a request whose grammar cannot be compiled: the request ends with an error."""

    error: str

    def accept(self, token_ids: Sequence[int]) -> None:
        """See Matcher."""

    def count_allowed(self, token_ids: Sequence[int]) -> int:
        return 0


class Grammars:
    """Compiles grammars with one backend, on any thread, and keeps the ones that were used last.

    `make` builds the backend. This takes a while, so it happens when the first grammar is compiled,
    or in `prepare`.
    """

    def __init__(self, make: Callable[[], GrammarBackend]) -> None:
        self._make = make
        self._made: GrammarBackend | None = None
        self._making = threading.Lock()
        self._kept = LastUsed[Grammar, CompiledGrammar](
            max_count=MAX_COMPILED, max_size=MAX_COMPILED_CHARACTERS
        )

    def __contains__(self, grammar: Grammar) -> bool:
        """Whether `compile` returns at once."""
        return self._kept.get(grammar) is not None

    def prepare(self) -> None:
        """Build the backend now, if it is not built yet."""
        _ = self._backend

    @property
    def _backend(self) -> GrammarBackend:
        with self._making:
            if self._made is None:
                self._made = self._make()
            return self._made

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar, or return the kept one. Raises GrammarError."""
        found = self._kept.get(grammar)
        if found is None:
            found = self._backend.compile(grammar)
            self._kept.put(grammar, found, grammar.num_characters)
        return found

    def matcher(self, grammar: Grammar, token_ids: Sequence[int]) -> Matcher:
        """A matcher that has followed the tokens of an answer so far."""
        try:
            matcher = self.compile(grammar).matcher()
        except GrammarError as error:
            return FailedMatcher(str(error))
        if token_ids:
            matcher.accept(token_ids)
        return matcher

    def fill(self, rows: Sequence[MaskedRows], masks_rw: Masks) -> None:
        """Write masks of rows whose matchers this object made; see GrammarBackend."""
        self._backend.fill(rows, masks_rw)


def allow_all(num_rows: int, num_words: int) -> Masks:
    return np.full((num_rows, num_words), -1, np.int32)
