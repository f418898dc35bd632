"""Log lines for people: short sentences for frequent events, names and fields for the others."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from ....core.log import EventFormatter, event_fields
from .request_log import CLIENT_LEFT

_FAINT, _RED, _GREEN, _YELLOW = 2, 31, 32, 33
"""ANSI codes."""
_LEVELS = {"DEBUG": _FAINT, "WARNING": _YELLOW, "ERROR": _RED, "CRITICAL": _RED}
_SHORTEST_ID = 8
"""Characters of a request's id that are always shown."""
Fields = Mapping[str, Any]


class LineFormatter(logging.Formatter):
    """Formats a record as one line, and the traceback of an exception below it."""

    def __init__(self, *, is_terminal: bool = False) -> None:
        """`is_terminal`: the lines of requests are cut at its width."""
        super().__init__(datefmt="%H:%M:%S")
        self._is_terminal = is_terminal
        dumb = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        self._has_colors = is_terminal and not dumb
        self._event = EventFormatter("%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        match f"{record.name} {record.msg}":
            case "tokenmill.api draining" if self._is_terminal:
                return f"\r{draining_text(vars(record))}"
            case "tokenmill.api stopped" if self._is_terminal:
                return "\rstopped"
            case "tokenmill.api request":
                return self._request(record)
            case "tokenmill.engine printed" | "tokenmill.api printed":
                return self._line(record, f"| {printable(event_fields(record)['text'])}")
            case "tokenmill.plugins plugin_start_slow":
                fields = event_fields(record)
                return self._line(record, f"still {fields['stage']} after {fields['seconds']} s")
            case "tokenmill.stats engine_stats":
                return self._line(record, stats_text(event_fields(record)))
        level = self._paint(_LEVELS.get(record.levelname), record.levelname.lower())
        return self._line(record, f"{level} {self._event.format(record)}")

    def _line(self, record: logging.LogRecord, text: str) -> str:
        begin = "\r" * self._is_terminal  # replaces the ^C that a terminal shows
        return f"{begin}{self._paint(_FAINT, self.formatTime(record, self.datefmt))} {text}"

    def _request(self, record: logging.LogRecord) -> str:
        fields = event_fields(record)
        status, text = str(fields["status"]), request_text(fields)
        room = None
        if self._is_terminal:
            used = len(f"00:00:00 {status} {text} ")
            room = max(_SHORTEST_ID, terminal_columns() - used)
        status = self._paint(_GREEN if status < "400" else _RED, status)
        found = self._paint(_FAINT, short_id(str(fields.get("request_id", "")), room))
        return self._line(record, f"{status} {text} {found}")

    def _paint(self, code: int | None, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._has_colors and code else text


def log_formatter() -> LineFormatter:
    """The formatter for standard error, which may be a terminal."""
    return LineFormatter(is_terminal=sys.stderr.isatty())


def terminal_columns() -> int:
    """The width of the terminal that standard error is, as it is now."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # it has been closed or replaced
        return 80


def request_text(fields: Fields) -> str:
    """Route, tokens and speed of a request, or its error; see `http/request_log.py`."""
    words = [printable(fields["path"])]
    if fields["method"] != "POST":
        words.insert(0, printable(fields["method"]))
    if (num_prompt := fields.get("prompt_tokens")) is not None:
        words.append(f"{num_prompt} in {fields['completion_tokens']} out")
    if (ttft := fields.get("ttft")) is not None:
        words.append(f"TTFT {duration(ttft)}")
    if (rate := fields.get("tokens_per_second")) is not None:
        words.append(f"{rate:.1f} tok/s")
    if fields["status"] == CLIENT_LEFT:
        words.append("ended early:" if fields.get("error") else "ended early")
    if error := fields.get("error"):
        words.append(printable(error))
    return " ".join(words)


def short_id(request_id: str, room: int | None = None) -> str:
    """A request's id. An id longer than `room` loses the API's prefix, and is cut."""
    found = printable(request_id)
    if room is None or len(found) <= room:
        return found
    return found.partition("-")[2][:room] or found[:room]


def stats_text(fields: Fields) -> str:
    """The sentence of the event `engine_stats`; the fields that it rarely has follow."""
    words = [
        f"{fields['avg_prompt_throughput']} in, {fields['avg_generation_throughput']} out, "
        f"{fields['running']} running, {fields['waiting']} waiting, "
        f"KV cache {fields['kv_cache_usage']}"
    ]
    rare = ("preemptions", "prefix_cache_hit_rate", "mean_acceptance_length")
    words += [f"{name.replace('_', ' ')} {fields[name]}" for name in rare if name in fields]
    return ", ".join(words)


def draining_text(fields: Fields) -> str:
    number, seconds = fields["num_requests"], fields["timeout"]
    if not number:
        return "stopping"
    answers = "1 answer still runs" if number == 1 else f"{number} answers still run"
    return f"{answers} (up to {seconds:g} s); Ctrl-C again stops now"


def duration(seconds: float) -> str:
    """Seconds with two or three significant digits: "85 ms", "1.2 s", "48 s"."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def printable(text: str) -> str:
    """A client's text without characters that would control the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)
