"""The text of an answer while it grows, and the functions with which parsers read it.

The functions are generators, for `yield from`. They yield None while they need more text. Their
results do not depend on how the text is cut into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

from .answers import ContentDelta

Waiting = Generator[None, None, None]


class AnswerText:
    """The unread text of one answer. The reader appends to it, a parser takes from its front."""

    def __init__(self) -> None:
        self.unread = ""
        self.is_complete = False
        """True when no more text comes."""
        self._num_chars = 0

    @property
    def num_taken(self) -> int:
        """Number of characters that were taken from the beginning of the text."""
        return self._num_chars - len(self.unread)

    def append(self, text: str) -> None:
        """Add generated text."""
        self.unread += text
        self._num_chars += len(text)

    def close(self) -> None:
        """Say that no more text comes."""
        self.is_complete = True

    def take(self, count: int) -> str:
        """Remove characters from the front, and return them."""
        taken, self.unread = self.unread[:count], self.unread[count:]
        return taken


def content_before(
    answer: AnswerText, markers: Sequence[str]
) -> Generator[ContentDelta | None, None, str]:
    """Yield the content before the first of these markers, then take the marker.

    Returns the marker with the whitespace before it, which is content only if the marker turns out
    to be none; "" at the end of the answer. Text that may still become a marker is not yielded. No
    marker may be the beginning of another.
    """
    marker = re.compile("|".join(map(re.escape, markers)))
    while True:
        text = answer.unread
        found = marker.search(text)
        if found:
            before = answer.take(len(text[: found.start()].rstrip()))
            if before:
                yield ContentDelta(before)
            return answer.take(found.end() - len(before))
        if answer.is_complete:
            yield from rest_as_content(answer)
            return ""
        certain = text[: len(text) - partial_length(text, markers)].rstrip()
        if certain:
            yield ContentDelta(answer.take(len(certain)))
        yield None


def rest_as_content(answer: AnswerText) -> Generator[ContentDelta | None, None, None]:
    """Yield all text up to the end of the answer as content."""
    while True:
        if answer.unread:
            yield ContentDelta(answer.take(len(answer.unread)))
        if answer.is_complete:
            return
        yield None


def find(answer: AnswerText, marker: str) -> Generator[None, None, int]:
    """Wait for a marker; return its place in the unread text, or -1 if the answer ends before."""
    start = 0
    while (place := answer.unread.find(marker, start)) < 0 and not answer.is_complete:
        start = max(0, len(answer.unread) - len(marker) + 1)
        yield None
    return place


def skip_space(answer: AnswerText) -> Waiting:
    """Take whitespace from the front, until other text or the end of the answer comes."""
    while True:
        answer.unread = answer.unread.lstrip()
        if answer.unread or answer.is_complete:
            return
        yield None


def take_next(answer: AnswerText, text: str) -> Generator[None, None, bool]:
    """Take this text, and whitespace before it, from the front; returns whether it was there."""
    while text.startswith(answer.unread.lstrip()) and text != answer.unread.lstrip():
        if answer.is_complete:
            return False
        yield None
    if not answer.unread.lstrip().startswith(text):
        return False
    answer.unread = answer.unread.lstrip()[len(text) :]
    return True


def take_end(answer: AnswerText, text: str) -> Waiting:
    """Take the text that ends a call, and whitespace around it.

    If the answer is cut within this text, take the part that is there.
    """
    if (yield from take_next(answer, text)):
        yield from skip_space(answer)
    elif text.startswith(answer.unread.lstrip()):
        answer.unread = ""


def partial_length(text: str, markers: Sequence[str]) -> int:
    """Number of characters at the end of a text that may be the beginning of a marker."""
    longest = max(map(len, markers), default=1) - 1
    for start in range(max(0, len(text) - longest), len(text)):
        if any(marker.startswith(text[start:]) for marker in markers):
            return len(text) - start
    return 0


class BracketScanner:
    """Finds the end of a value in brackets, such as a JSON object, whose text comes in pieces.

    `quotes` are the characters that begin and end strings. Brackets of all kinds are equal.
    `depth` is the number of brackets that are already open.
    """

    def __init__(self, quotes: str = '"', *, depth: int = 0) -> None:
        self._quotes = quotes
        self._quote: str | None = None
        self._is_escaped = False
        self._depth = depth
        self._interesting = re.compile(r"[\\\[\](){}" + re.escape(quotes) + "]")

    def scan(self, piece: str) -> int | None:
        """Number of characters of this piece up to the end of the value; None: it goes on."""
        place = 0
        while place < len(piece):
            if self._is_escaped:
                self._is_escaped = False
                place += 1
                continue
            match = self._interesting.search(piece, place)
            if match is None:
                return None
            place = match.end()
            if self._ends_with(match[0]):
                return place
        return None

    def _ends_with(self, char: str) -> bool:
        """Follow a bracket, quote or backslash; returns whether the value ends with it."""
        if self._quote is not None:
            self._is_escaped = char == "\\"
            if char == self._quote:
                self._quote = None
        elif char in self._quotes:
            self._quote = char
        elif char in "[{(":
            self._depth += 1
        elif char in "]})":
            self._depth -= 1
            return self._depth <= 0
        return False
