"""Reads a SentencePiece model (tokenizer.model) as the metadata of a GGUF file's tokenizer.

The file is one protocol buffer; only the fields below are read. Layout:
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError
from ..weights.files.bounded import read_bounded
from .gguf.fields import TokenType

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _BPE = 3, 2
_IDS = {40: "unknown", 41: "bos", 42: "eos", 43: "padding"}
_DEFAULT_IDS = {"unknown": 0, "bos": 1, "eos": 2, "padding": -1}
_CHARSMAP, _ADD_PREFIX, _REMOVE_SPACES = 2, 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Value = int | bytes


def read_sentencepiece_model(path: Path) -> dict[str, Any]:
    """Read the file. Raises ConfigError if it is damaged, or not a BPE model."""
    try:
        fields = list(_fields(read_bounded(path)))
        return _metadata(fields)
    except (OSError, ValueError, IndexError, TypeError, struct.error) as error:
        raise ConfigError(f"{path} cannot be read as a SentencePiece model: {error}") from error


def _metadata(fields: list[tuple[int, Value]]) -> dict[str, Any]:
    pieces = [_piece(_bytes(value)) for number, value in fields if number == _PIECES]
    trainer = _message(fields, _TRAINER)
    normalizer = _message(fields, _NORMALIZER)
    if trainer.get(_MODEL_TYPE) != _BPE:
        raise ValueError("it is not a BPE model, the only kind that is supported")
    stated = {name: _signed(trainer[number]) for number, name in _IDS.items() if number in trainer}
    ids = {f"tokenizer.ggml.{name}_token_id": i for name, i in (_DEFAULT_IDS | stated).items()}
    return ids | {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [text for text, _, _ in pieces],
        "tokenizer.ggml.scores": [score for _, score, _ in pieces],
        "tokenizer.ggml.token_type": [kind for _, _, kind in pieces],
        "tokenizer.ggml.precompiled_charsmap": normalizer.get(_CHARSMAP),
        "tokenizer.ggml.add_space_prefix": bool(normalizer.get(_ADD_PREFIX, 1)),
        "tokenizer.ggml.remove_extra_whitespaces": bool(normalizer.get(_REMOVE_SPACES, 1)),
    }


def _piece(data: bytes) -> tuple[str, float, int]:
    """Return text, score and type; user-defined pieces are found before spaces become "▁"."""
    fields = dict(_fields(data))
    text = _bytes(fields[_TEXT]).decode() if _TEXT in fields else ""
    kind = int(fields.get(_TYPE, TokenType.NORMAL))
    score = struct.unpack("<f", _bytes(fields[_SCORE]))[0] if _SCORE in fields else 0.0
    return text.replace("▁", " ") if kind == TokenType.USER_DEFINED else text, score, kind


def _message(fields: list[tuple[int, Value]], number: int) -> dict[int, Value]:
    """Return the fields of a nested message; of repeated ones, the last."""
    data = next((value for found, value in fields if found == number), b"")
    return dict(_fields(_bytes(data)))


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has the wrong type")
    return value


def _signed(value: Value) -> int:
    """Return a number of 32 bits, which is stored as 64."""
    return int(value) - (1 << 64) if int(value) >= 1 << 63 else int(value)


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the number and value of each field; fixed-width numbers stay bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[kind] if kind in (_FIXED64, _FIXED32) else -1
        if size < 0 or at + size > len(data):
            raise ValueError("it is cut short or damaged")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("it is cut short or damaged")
