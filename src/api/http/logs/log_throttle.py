"""Keeps clients from filling the log: the same line is shown at most once per interval."""

from __future__ import annotations

import logging
import time

INTERVAL = 10.0
"""Seconds between two lines with the same text."""
MAX_TEXTS = 256


class Throttle(logging.Filter):
    """Drops a record of another library whose first line, unformatted, was shown a moment ago, and
    counts it for the next. Add it to a handler: a logger's filters do not see its children."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[str, float] = {}
        self._dropped: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show the record. A shown one says how many were dropped before it."""
        if record.name.partition(".")[0] == "tokenmill":
            return True
        text, now = str(record.msg).partition("\n")[0], time.monotonic()
        if now - self._shown.get(text, -INTERVAL) < INTERVAL:
            self._dropped[text] = self._dropped.get(text, 0) + 1
            return False
        if len(self._shown) >= MAX_TEXTS:
            self._shown.clear()
            self._dropped.clear()
        self._shown[text] = now
        if num_dropped := self._dropped.pop(text, 0):
            record.num_dropped = num_dropped
        return True
