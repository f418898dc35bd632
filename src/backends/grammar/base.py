"""The contract of grammar backends: from a request's grammar to masks of allowed tokens.

A backend compiles a grammar once, and makes a matcher for each answer that must follow it. The
matcher follows the answer's tokens. Before each token is chosen, the backend writes the masks of
all matchers of a step in one call.

Shape suffixes: r rows of logits, w words of 32 tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...core.requests.grammar import Grammar

Masks = npt.NDArray[np.int32]
"""int32 [r, w]: bit `i % 32` of word `i // 32` is 1 if token `i` is allowed."""


class GrammarError(Exception):
    """A grammar that the backend cannot use: what is wrong with it, for the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """The tokens of a model, as a grammar backend needs them."""

    token_bytes: tuple[bytes, ...]
    """By token id; empty for ids without a text. The model has a logit for each of them."""
    special_ids: tuple[int, ...]
    """Control tokens, such as "<|im_end|>". Their bytes are not text, so no grammar allows them."""
    end_ids: tuple[int, ...]
    """The tokens that end an answer. They are allowed exactly where the grammar may end."""

    @classmethod
    def of_model(
        cls, known: tuple[bytes, ...], special: Iterable[int], ends: Sequence[int], size: int
    ) -> GrammarSpec:
        """The tokens of a tokenizer, for a model with `size` logits. Some may have no token."""
        return cls(
            token_bytes=known[:size] + (b"",) * (size - len(known)),
            special_ids=tuple(sorted(i for i in {*special, *ends} if i < size)),
            end_ids=tuple(token_id for token_id in ends if token_id < size),
        )

    @property
    def num_words(self) -> int:
        """Words of a mask."""
        return -(-len(self.token_bytes) // 32)


class Matcher(Protocol):
    """The state of one answer within its grammar. No method raises; an error ends the request."""

    @property
    def error(self) -> str | None:
        """Why the answer cannot go on, for the client: for example a limit of the backend. None
        while all is well. Once set it stays."""
        ...

    def accept(self, token_ids: Sequence[int]) -> None:
        """Follow tokens of the answer. A token that the grammar forbids is an error."""
        ...

    def count_allowed(self, token_ids: Sequence[int]) -> int:
        """The number of these tokens, from the first on, that may follow. The state is the same
        afterwards."""
        ...


class CompiledGrammar(Protocol):
    """A grammar that is ready for use. It is used for many answers, on several threads."""

    @property
    def ignored(self) -> Sequence[str]:
        """The keywords that the backend ignores. Only a grammar that is not strict has any."""
        ...

    def matcher(self) -> Matcher:
        """A matcher at the beginning of an answer. Takes microseconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedRows:
    """The consecutive rows of one answer: one for its next token, and one after each draft."""

    matcher: Matcher
    """Its `error` is None."""
    first_row: int
    draft_token_ids: Sequence[int]


class GrammarBackend(Protocol):
    """Compiles grammars and writes masks.

    The engine makes one object for compiling and masks, and another in the worker process that
    tries a grammar before its request is admitted. There a grammar that takes too much time or
    memory ends the worker, so `compile` and the first mask may take long. Later masks may not: a
    backend limits the work of each, and exceeding the limit is an `error` of the matcher.

    The factory that `Registry.grammar_backend` gets is a function of a module, because the worker
    imports it by name.
    """

    name: str

    @classmethod
    def reasons_against(cls, spec: GrammarSpec) -> list[str]:
        """Return every reason why this backend cannot serve these tokens; empty when it can."""
        ...

    def __init__(self, spec: GrammarSpec) -> None: ...

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar. Called on several threads.

        Raises GrammarError for a grammar that is wrong, too large or not supported; the message
        names the keyword.
        """
        ...

    def fill(self, rows: Sequence[MaskedRows], masks_rw: Masks) -> None:
        """Write the masks of these rows; other rows stay as they are. Called once per step.

        All words of `masks_rw` are -1 before the call. The rows after a draft that is not allowed
        may stay so. A matcher whose answer has ended allows only its end tokens.
        """
        ...
