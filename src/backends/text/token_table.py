"""A table of all tokens: their bytes, whether they are special, and how they are joined to text.

In two families of decoders a token's bytes never depend on its neighbours: ByteLevel (GPT-2's
alphabet of 256 characters) and SentencePiece's ("▁" for a space, "<0xE2>" for a byte). They decode
by joining bytes. For all other decoders each token is decoded once, to fill the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from ...core.errors import ConfigError

_MAX_UNUSED_IDS = 1 << 18
"""Bounds the table's memory. Known vocabularies leave out some thousand ids."""
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """The bytes and properties of every token; ids without a token have no bytes."""

    token_bytes: tuple[bytes, ...]
    special_ids: frozenset[int]
    """The tokens that `skip_special_tokens` leaves out."""
    joins_bytes: bool
    """Whether a text is the joined bytes of its tokens, decoded as UTF-8."""
    strips_first: bool
    """Whether decoding removes a space at the start of the first token (SentencePiece)."""

    @property
    def max_chars_per_token(self) -> int:
        """Maximum characters of a token; a split character counts on both sides of the split."""
        return (
            max((len(data.decode("utf-8", "replace")) for data in self.token_bytes), default=0) or 1
        )

    def visible(self, token_ids: Iterable[int], *, skip_special_tokens: bool) -> list[int]:
        """Return the ids whose text is shown."""
        known = range(len(self.token_bytes))
        hidden = self.special_ids if skip_special_tokens else frozenset()
        return [index for index in token_ids if index in known and index not in hidden]


def build_token_table(backend: Tokenizer, source: str) -> TokenTable:
    """Build the table of a tokenizer.

    Raises ConfigError if its decoder is not supported, or its highest id is absurd.
    """
    vocab = backend.get_vocab(with_added_tokens=True)
    highest = max(vocab.values(), default=-1)
    if highest >= len(vocab) + _MAX_UNUSED_IDS:
        raise ConfigError(
            f"{source}: the id {highest} is too large for a tokenizer with {len(vocab)} tokens"
        )
    steps = _decoder_steps(backend)
    kinds = [step["type"] for step in steps]
    is_sentencepiece = _is_sentencepiece(steps)
    if kinds == ["ByteLevel"]:
        token_bytes = _byte_level_bytes(vocab)
    elif is_sentencepiece:
        token_bytes = _sentencepiece_bytes(vocab, has_byte_tokens="ByteFallback" in kinds)
    elif "ByteLevel" in kinds or "ByteFallback" in kinds:
        raise ConfigError(f"{source}: a decoder of {' + '.join(kinds)} is not supported")
    else:
        token_bytes = _bytes_by_decoding(backend, vocab)
    return TokenTable(
        token_bytes=_as_table(token_bytes),
        special_ids=frozenset(
            i for i, token in backend.get_added_tokens_decoder().items() if token.special
        ),
        joins_bytes=kinds == ["ByteLevel"] or is_sentencepiece,
        strips_first=is_sentencepiece and any(_strips(step) for step in steps),
    )


def _as_table(token_bytes: Mapping[int, bytes]) -> tuple[bytes, ...]:
    return tuple(token_bytes.get(index, b"") for index in range(max(token_bytes, default=-1) + 1))


def _decoder_steps(backend: Tokenizer) -> list[dict[str, Any]]:
    """Return the decoder's steps in order, without Fuse, which only joins."""
    if backend.decoder is None:
        return []
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return [step for step in steps if step["type"] != "Fuse"]


_SPACES = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}


def _is_sentencepiece(steps: list[dict[str, Any]]) -> bool:
    """Whether one step turns "▁" into spaces, and others only handle byte tokens or strip."""
    spaces = [step for step in steps if step == _SPACES or step.get("replacement") == "▁"]
    others = [step for step in steps if step not in spaces]
    return len(spaces) == 1 and all(
        step["type"] == "ByteFallback"
        or (step["type"] == "Strip" and step["content"] == " " and step["stop"] == 0)
        for step in others
    )


def _strips(step: Mapping[str, Any]) -> bool:
    return bool(step.get("start", 0) > 0 or step.get("prepend_scheme", "never") != "never")


def _byte_level_bytes(vocab: Mapping[str, int]) -> dict[int, bytes]:
    """Return the tokens' bytes; one with a character outside the alphabet is plain text."""
    byte_of_char = _byte_of_char()
    is_of_alphabet = frozenset(map(chr, byte_of_char)).issuperset
    return {
        index: token.translate(byte_of_char).encode("latin-1")
        if is_of_alphabet(token)
        else token.encode()
        for token, index in vocab.items()
    }


def _byte_of_char() -> dict[int, int]:
    """Return GPT-2's alphabet: printable Latin-1 is unchanged, other bytes are U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + n: byte for n, byte in enumerate(others)}


def _sentencepiece_bytes(vocab: Mapping[str, int], *, has_byte_tokens: bool) -> dict[int, bytes]:
    found = {}
    for token, index in vocab.items():
        byte = _BYTE_TOKEN.fullmatch(token) if has_byte_tokens else None
        found[index] = bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
    return found


def _bytes_by_decoding(backend: Tokenizer, vocab: Mapping[str, int]) -> dict[int, bytes]:
    """Return each token's bytes after another token, so that they include a space before it."""
    return {index: _continuation(backend, token).encode() for token, index in vocab.items()}


def _continuation(backend: Tokenizer, token: str) -> str:
    if backend.decoder is None:
        return " " + token
    text: str = backend.decoder.decode(["a", token])
    return text.removeprefix("a")
