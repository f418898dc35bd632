"""Checks that parsers of tool calls and of reasoning share. `make` begins to read an answer."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from ....core.interfaces import ChatFormat
from .reading import PLAIN, Make, Reading, cut, hard_answers, read

every_seed = pytest.mark.parametrize("seed", (1, 2, 3))


def check_reasons(parser: Any) -> None:
    assert isinstance(parser.needs_special_tokens, bool)
    for source in ("", "{{ messages[0].content }}"):
        reasons = parser.reasons_against(ChatFormat(source=source))
        assert isinstance(reasons, list) and all(isinstance(text, str) for text in reasons)


def check_plain(make: Make) -> None:
    for text in PLAIN:
        found = read(make, [text])
        assert found.said == (text, "", []), f"{text!r} is plain text"


def check_cuts(make: Make, seed: int) -> None:
    rng = random.Random(seed)
    for text in hard_answers(seed):
        whole, pieces = read(make, [text]), cut(text, rng)
        found = read(make, pieces)
        assert not found.is_endless, f"parse() yields deltas without end for {text!r}"
        assert found.said == whole.said, f"the pieces {pieces} are read in another way"


def check_several(make: Make) -> None:
    texts = hard_answers(4)
    readings = [Reading(make) for _ in texts]
    for place in range(max(map(len, texts))):
        for reading, text in zip(readings, texts, strict=True):
            reading.feed(text[place : place + 1])
    for reading, text in zip(readings, texts, strict=True):
        reading.finish()
        assert reading.said == read(make, list(text)).said, f"another answer changed {text!r}"


def seconds_per_piece(make: Make) -> float:
    """Time for one piece, in seconds, of a long answer with calls."""
    pieces = [text for text in hard_answers(5) * 20 if text]
    started = time.perf_counter()
    read(make, pieces)
    return (time.perf_counter() - started) / len(pieces)
