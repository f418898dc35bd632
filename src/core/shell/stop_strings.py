"""Finds stop strings in text that comes in pieces, and decides how much of it may be sent."""

from __future__ import annotations


class StopStringMatcher:
    """Looks for several strings at once in a stream of text.

    The text ends at the stop string whose last character comes first. If several end at the same
    character, the longest one counts, so that no part of it is left before the end. So the result
    depends only on the text, not on how it was split into pieces. Each stop string has its own
    Knuth-Morris-Pratt state: for each of them time is linear in the length of the text.
    """

    def __init__(self, stops: tuple[str, ...], include_in_output: bool = False) -> None:
        self._stops = tuple(dict.fromkeys(sorted(filter(None, stops), key=len, reverse=True)))
        self._include_in_output = include_in_output
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._fallbacks = [_fallbacks(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._is_done = False

    def feed(self, text: str) -> tuple[str, str | None]:
        """Add the next piece; returns the text that may be sent now, and the stop string if found.

        The longest end of the text that could begin a stop string is held back. Once a stop string
        is found, the returned text ends before it, or after it with `include_in_output`. The rest
        of the piece is dropped, and `feed` must not be called again.
        """
        assert not self._is_done, "fed after the end"
        if not self._held and self._first_chars.isdisjoint(text):
            return text, None
        for index, char in enumerate(text):
            stop = self._step(char)
            if stop is not None:
                self._is_done = True
                seen, self._held = self._held + text[: index + 1], ""
                return seen if self._include_in_output else seen[: -len(stop)], stop
        seen = self._held + text
        safe = len(seen) - max(self._matched, default=0)
        self._held = seen[safe:]
        return seen[:safe], None

    def flush(self) -> str:
        """Return the text that was held back, when the text ends without a stop string."""
        held, self._held = self._held, ""
        self._is_done = True
        return held

    def _step(self, char: str) -> str | None:
        """Advance every stop string by one character; returns the longest complete one, if any."""
        for index, stop in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != char:
                matched = self._fallbacks[index][matched - 1]
            matched += stop[matched] == char
            self._matched[index] = matched
            if matched == len(stop):
                return stop
        return None


def _fallbacks(pattern: str) -> list[int]:
    """For each prefix of the pattern, the length of its longest proper suffix that is a prefix."""
    fallbacks = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[length] != pattern[index]:
            length = fallbacks[length - 1]
        length += pattern[length] == pattern[index]
        fallbacks[index] = length
    return fallbacks
