"""Tokenizer directories that lie: changed places of their JSON files, and changed bytes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

_ABSURD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**31 - 1,
    2**32 - 1,
    10**18,
    1.5,
    1e308,
    "",
    "a",
    "\n",
    "\x00",
    "▁" * 3,
    "x" * 5000,
    "(a+)+$",
    "(",
    "{{ messages }}",
    "{% for x in range(10**9) %}{% endfor %}",
    [],
    [[]],
    {},
    {"type": "Sequence", "decoders": []},
    {"String": "a"},
    {"Regex": "["},
    {"content": "a"},
    ["a", 0],
]
"""Values that few places of a tokenizer's files should have."""
_TYPES = ["BPE", "Unigram", "WordPiece", "WordLevel", "ByteLevel", "Metaspace", "ByteFallback",
          "Fuse", "Strip", "Replace", "Split", "Sequence", "TemplateProcessing", "Prepend",
          "BertProcessing", "Digits", "Precompiled", "NFKC", "Lowercase"]  # fmt: skip


@st.composite
def changed_json(draw: st.DrawFn, valid: Mapping[str, Any]) -> bytes:
    """A JSON file with one to three places changed: set, taken out, or copied from elsewhere."""
    content = copy.deepcopy(dict(valid))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(content))
        if not places:
            break
        owner, key = draw(st.sampled_from(places))
        how = draw(st.integers(0, 5))
        if how == 0:
            del owner[key]
        elif how == 1 and key == "type":
            owner[key] = draw(st.sampled_from(_TYPES))
        elif how == 2:
            other, place = draw(st.sampled_from(places))
            owner[key] = copy.deepcopy(other[place])
        else:
            owner[key] = copy.deepcopy(draw(st.sampled_from(_ABSURD)))
    return json.dumps(content).encode()


@st.composite
def changed_bytes(draw: st.DrawFn, valid: bytes) -> bytes:
    """A file with a few bytes changed, or cut."""
    content = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content) - 1))
        content[place] = draw(st.integers(0, 255))
    return bytes(content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a JSON value with each of its keys; of long ones only some."""
    if not isinstance(value, dict | list):
        return
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    for key in keys[:12]:
        yield value, key
        yield from _places(value[key])
