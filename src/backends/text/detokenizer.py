"""Incremental detokenization: text as soon as it is certain, and never a wrong character.

What all outputs of a detokenizer add up to is the text of its tokens in the middle of a sequence:
unlike `Tokenizer.decode`, which reads its tokens as a beginning, it keeps the space with which a
SentencePiece token may start. So prompt and completion can be joined, as in other engines.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tokenizers import Tokenizer

from .token_table import TokenTable


class ByteDetokenizer:
    """For tokenizers whose tokens are bytes: exact for any tokens, in any pieces.

    Holds back at most the first three bytes of a character; time is linear in the bytes.
    """

    def __init__(self, table: TokenTable, *, skip_special_tokens: bool) -> None:
        self._table = table
        self._skip_special_tokens = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that became certain through these tokens."""
        visible = self._table.visible(token_ids, skip_special_tokens=self._skip_special_tokens)
        return self._utf8.decode(b"".join([self._table.token_bytes[index] for index in visible]))

    def finish(self) -> str:
        """What was held back: U+FFFD for a character that stayed incomplete, else nothing."""
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """For all other decoders (WordPiece, word suffixes): decodes the last few tokens again.

    A token's text is what it adds to that of the tokens before it. Exact where a token's text
    depends on at most `_CONTEXT` tokens before it and on whether one follows.
    """

    _CONTEXT = 4

    def __init__(self, backend: Tokenizer, table: TokenTable, *, skip_special_tokens: bool) -> None:
        self._backend = backend
        self._table = table
        self._skip_special_tokens = skip_special_tokens
        self._window = [_any_token(table)]
        self._shown = self._decode()

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens add."""
        visible = self._table.visible(token_ids, skip_special_tokens=self._skip_special_tokens)
        return "".join([self._add_one(token_id) for token_id in visible])

    def finish(self) -> str:
        """Nothing: these decoders have no incomplete characters to hold back."""
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
    """Stands for the prompt's last token, so that the first new one does not begin the text."""
    shown = (
        index
        for index, data in enumerate(table.token_bytes)
        if data and index not in table.special_ids
    )
    return next(shown, 0)
