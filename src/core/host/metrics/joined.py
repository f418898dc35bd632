"""Checks the metrics that observers render, so that one of them cannot break those of all.

The format is Prometheus's text format, version 0.0.4.
"""

from __future__ import annotations

import re

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\.)*+"'
_NUMBER = r"(?:[-+]?(?:[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|Inf)|NaN)"
_SAMPLE = rf"{_NAME}(?:\{{(?:{_LABEL},? *)*+\}})? +{_NUMBER}(?: +-?[0-9]+)?"
_LINE = re.compile(rf"#[^\n]*|{_SAMPLE}|")
_TEXT = re.compile(rf"(?:(?:{_LINE.pattern})\n)*+")
_FAMILY = re.compile(rf"^# TYPE ({_NAME}) ", re.MULTILINE)


class JoinedMetrics:
    """The metrics of several observers as one text, without those that a scraper would refuse."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._families: set[str] = set()

    def add(self, answer: object) -> str | None:
        """Add an observer's metrics, or return what is wrong with them."""
        if not isinstance(answer, bytes):
            return f"'render_metrics' must return bytes, got {answer!r:.100}"
        try:
            text = answer.decode()
        except UnicodeDecodeError:
            return "'render_metrics' must return UTF-8"
        if text and not text.endswith("\n"):
            text += "\n"
        if _TEXT.fullmatch(text) is None:
            line = next(line for line in text.split("\n") if _LINE.fullmatch(line) is None)
            return f"'render_metrics' returned a line that Prometheus cannot read: {line!r:.100}"
        families = set(_FAMILY.findall(text))
        if taken := families & self._families:
            return f"'render_metrics' returned {min(taken)!r}, which another plugin has already"
        self._families |= families
        self._parts.append(text.encode())
        return None

    def render(self) -> bytes:
        return b"".join(self._parts)
