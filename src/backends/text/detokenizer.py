"""Incremental detokenization: returns text as soon as it is certain, and never a wrong character.

All outputs of a detokenizer together are the text of its tokens in the middle of a sequence. They
keep the space at the start of a SentencePiece token, which `Tokenizer.decode` removes from its
first token. So prompt and completion can be joined, as in other engines.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tokenizers import Tokenizer

from .token_table import TokenTable


class ByteDetokenizer:
    """Detokenizes tokens that stand for bytes; exact for any tokens, however they are divided.

    It holds back at most the first three bytes of a character. Its time is linear in the bytes.
    """

    def __init__(self, table: TokenTable, *, skip_special_tokens: bool) -> None:
        self._table = table
        self._skip_special_tokens = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_ids: Sequence[int]) -> str:
        """Return the text that became certain with these tokens."""
        visible = self._table.visible(token_ids, skip_special_tokens=self._skip_special_tokens)
        return self._utf8.decode(b"".join([self._table.token_bytes[index] for index in visible]))

    def finish(self) -> str:
        """Return the text held back: U+FFFD for an incomplete character, else nothing."""
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """Detokenizes for all other decoders (WordPiece, word suffixes): decodes some tokens again.

    A token's text is the text that it adds to the tokens before it. This is exact if a token's text
    depends only on the `_CONTEXT` tokens before it, and on whether a token follows.
    """

    _CONTEXT = 4

    def __init__(self, backend: Tokenizer, table: TokenTable, *, skip_special_tokens: bool) -> None:
        self._backend = backend
        self._table = table
        self._skip_special_tokens = skip_special_tokens
        self._window = [_any_token(table)]
        self._shown = self._decode()

    def add(self, token_ids: Sequence[int]) -> str:
        visible = self._table.visible(token_ids, skip_special_tokens=self._skip_special_tokens)
        return "".join([self._add_one(token_id) for token_id in visible])

    def finish(self) -> str:
        """Return nothing: these decoders have no incomplete characters."""
        return ""

    def _add_one(self, token_id: int) -> str:
        self._window.append(token_id)
        new = self._decode()[len(self._shown) :]
        del self._window[: -self._CONTEXT]
        self._shown = self._decode()
        return new

    def _decode(self) -> str:
        return self._backend.decode(self._window, skip_special_tokens=False)


def _any_token(table: TokenTable) -> int:
    """Return an ordinary token in place of the prompt's last one: a new token is never decoded as
    the beginning of a text."""
    shown = (
        index
        for index, data in enumerate(table.token_bytes)
        if data and index not in table.special_ids
    )
    return next(shown, 0)
