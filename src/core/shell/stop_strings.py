"""Finds stop strings in text that comes in pieces, and says how much of it may be sent already."""

from __future__ import annotations


class StopStringMatcher:
    """Looks for several strings at once in a stream.

    The stop string whose last character comes first ends the text; of those that end at the same
    character the longest, so that no part of any stop string is left in front of it. Thus the
    result depends on the text alone, never on how it was cut into pieces. Each stop string keeps
    its own Knuth-Morris-Pratt state: time is linear in the text, whatever the strings.
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
        """Takes the next piece; returns what may be sent now, and the stop string if one was found.

        Held back is the longest end of the text that could begin a stop string. Once one is found,
        the text sent ends before it (or after it, with `include_in_output`), the rest of the piece
        is dropped, and nothing more may be fed.
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
        """What was held back, when the text ends without a stop string."""
        held, self._held = self._held, ""
        self._is_done = True
        return held

    def _step(self, char: str) -> str | None:
        """Advances every stop string by one character; the longest that is complete now, if any."""
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
    """For each prefix of the pattern, the length of its longest proper end that is also one."""
    fallbacks = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[length] != pattern[index]:
            length = fallbacks[length - 1]
        length += pattern[length] == pattern[index]
        fallbacks[index] = length
    return fallbacks
