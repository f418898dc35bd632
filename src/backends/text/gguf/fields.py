"""The metadata of a GGUF file's tokenizer, checked; errors name the file and the key."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from ....core.errors import ConfigError
from ...weights.config.fields import Fields

_KEY = "tokenizer.ggml."
_NO_TOKEN = (-1, 2**32 - 1)
"""Ids that some converters write for a token that the model lacks."""
_MAX_TOKEN_CHARS = 4096
"""Bounds the time per token; the longest token of known vocabularies has about 500 characters."""


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, with the numbers of SentencePiece."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class TokenizerFields:
    """The vocabulary and the keys under `tokenizer.ggml.`. Raises ConfigError if it is unusable."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self.values = Fields(metadata, source)
        self.source = source
        self.tokens = self._tokens()
        self.types = self._types()

    def text(self, name: str) -> str | None:
        return self.values.optional_text(_KEY + name)

    def flag(self, name: str, default: bool) -> bool:
        return self.values.flag(_KEY + name, default)

    def special(self, name: str, default: int | None = None) -> str | None:
        """Return the token of `tokenizer.ggml.<name>_token_id`, or None.

        Raises ConfigError if the file states an id outside the vocabulary.
        """
        key = f"{_KEY}{name}_token_id"
        if self.values.get(key) in _NO_TOKEN:
            return None
        stated = self.values.optional_integer(key)
        index = default if stated is None else stated
        if index is not None and 0 <= index < len(self.tokens):
            return self.tokens[index]
        if stated is None:
            return None
        raise self.error(f"{key} is {stated}, but it has {len(self.tokens)} tokens")

    def merges(self) -> list[tuple[str, str]]:
        return [self._split_merge(merge) for merge in self._strings("merges")]

    def scores(self) -> list[float]:
        """Return one score per token. Raises ConfigError if there are none."""
        scores = self._numbers("scores")
        if scores is None:
            raise self.error(f"it has no {_KEY}scores, which a SentencePiece tokenizer needs")
        if not all(map(math.isfinite, scores)):
            raise self.error(f"{_KEY}scores has a score that is not a finite number")
        return scores

    def of_type(self, *types: TokenType) -> list[str]:
        pairs = zip(self.tokens, self.types, strict=True)
        return [token for token, kind in pairs if kind in types]

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.source}: {problem}")

    def _tokens(self) -> list[str]:
        """Read the tokens; empty ones get a name, as in llama.cpp."""
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(self._strings("tokens"))]
        if len(set(tokens)) != len(tokens):
            [(double, _)] = Counter(tokens).most_common(1)
            raise self.error(f"{_KEY}tokens has the same token twice: {double!r:.80}")
        longest = max(map(len, tokens))
        if longest > _MAX_TOKEN_CHARS:
            raise self.error(
                f"{_KEY}tokens has a token of {longest} characters, more than {_MAX_TOKEN_CHARS}"
            )
        return tokens

    def _types(self) -> list[TokenType]:
        numbers = self._numbers("token_type")
        if numbers is None:
            return [TokenType.NORMAL] * len(self.tokens)
        known = {float(kind): kind for kind in TokenType}
        wrong = next((number for number in numbers if number not in known), None)
        if wrong is not None:
            raise self.error(f"{_KEY}token_type has {wrong:g}, which is not 0 to {max(TokenType)}")
        return [known[number] for number in numbers]

    def _strings(self, name: str) -> list[str]:
        value = self.values.get(_KEY + name)
        texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
        if not texts:
            raise self.error(
                f"it has no {_KEY}{name}, so its tokenizer is incomplete: set --tokenizer"
            )
        return texts

    def _numbers(self, name: str) -> list[float] | None:
        """Return one number per token, or None when the key is missing."""
        value = self.values.get(_KEY + name)
        if value is None:
            return None
        items = value if isinstance(value, list) else []
        numbers = [float(item) for item in items if not isinstance(item, str)]
        if len(numbers) != len(self.tokens):
            raise self.error(
                f"{_KEY}{name} must have a number for each of {len(self.tokens)} tokens"
            )
        return numbers

    def _split_merge(self, merge: str) -> tuple[str, str]:
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise self.error(f"{_KEY}merges has {merge!r:.80}, which is not two tokens")
        return left, right
