"""Text that a process prints, for example in a library, becomes lines of the log."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from ..log import get_logger
from .logs import ROOT

PIECE = 1 << 12
"""Bytes to read at once: the lines of more would hold up an event loop."""
MAX_PIECES = 64
"""Pieces to read of a process that has ended: more than a pipe holds."""
MAX_LINE = 1 << 13
"""Bytes of a line. A longer one is divided."""
MAX_LINES = 200
"""Lines to show in a second: the parent has to serve, and a terminal is slow."""
_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
"""Codes for colors and the cursor."""
_thread = threading.local()
"""Has `is_showing` while the thread shows a line."""


def show_printed(text: str) -> None:
    """Log a line. In a program that has not set up this log, write it to standard error: other
    formatters would show only the name of the event."""
    if logging.getLogger(ROOT).handlers:
        get_logger("engine").warning("printed", text=text)
    else:
        print(text, file=sys.stderr)


class PrintedPipe:
    """A pipe that is the standard output and error of a child process."""

    def __init__(self, show: Callable[[str], None]) -> None:
        """`show`: called with each line. Raises OSError if there is no file descriptor."""
        self.fd, self.writer = os.pipe()
        """Its ends: `fd` has data to read; the child gets `writer`."""
        os.set_blocking(self.fd, False)
        self._lines = PrintedLines(show)
        self._has_writer = True

    def close_writer(self) -> None:
        """Close this process's copy of the writing end. Safe to call twice."""
        if self._has_writer:
            self._has_writer = False
            os.close(self.writer)

    def receive(self) -> bool:
        """Read a piece. False if there is nothing to read."""
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self.fd, PIECE)
        self._lines.take(data)
        return bool(data)

    def close(self) -> None:
        """Show what is left of a process that has ended."""
        self.close_writer()
        for _ in range(MAX_PIECES):
            if not self.receive():
                break
        os.close(self.fd)
        self._lines.end()


class PrintedLines:
    """Divides printed text into lines, and shows at most MAX_LINES of them in a second."""

    def __init__(self, show: Callable[[str], None]) -> None:
        """`show`: called with each line."""
        self._show = show
        self._begun = b""
        self._lock = threading.Lock()
        """Several threads may print. Not held while lines are shown: a log has locks of its own."""
        self._second, self._num_shown = 0.0, 0
        """When the current second has begun, and the lines that were shown in it."""
        self._num_hidden = 0
        self._hidden: deque[str] = deque(maxlen=MAX_LINES)
        """The last of the lines that were not shown. A crash is explained at the end."""

    def take(self, data: bytes) -> None:
        """Show the lines that end in `data`."""
        with self._lock:
            *whole, begun = (self._begun + data).split(b"\n")
            lines = [piece for line in whole for piece in _divided(line)]
            *rest, self._begun = _divided(begun)
            lines += rest
            shown = [text for line in lines for text in self._take_line(line)]
        for text in shown:
            self._show(text)

    def end(self) -> None:
        """Show what is left: a line without an end, and the last lines that were not shown."""
        with self._lock:
            shown = self._take_line(self._begun)
            shown += [*_left_out(self._num_hidden - len(self._hidden)), *self._hidden]
            self._begun, self._num_hidden = b"", 0
            self._hidden.clear()
        for text in shown:
            self._show(text)

    def _take_line(self, line: bytes) -> list[str]:
        """The lines to show now."""
        # A progress bar replaces a line by "\r" again and again: its last state stays.
        text = _CONTROL.sub(b"", line).rstrip().rpartition(b"\r")[2].decode(errors="replace")
        if not text:
            return []
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._num_shown = now, 0
        self._num_shown += 1
        if self._num_shown > MAX_LINES:
            self._num_hidden += 1
            self._hidden.append(text)
            return []
        shown = [*_left_out(self._num_hidden), text]
        self._num_hidden = 0
        self._hidden.clear()
        return shown


def _divided(line: bytes) -> list[bytes]:
    """Pieces of at most MAX_LINE bytes; at least one."""
    return [line[at : at + MAX_LINE] for at in range(0, len(line), MAX_LINE)] or [b""]


def _left_out(number: int) -> list[str]:
    return [f"[{number} lines are left out]"] if number else []


class PrintedText(io.TextIOWrapper):
    """Stands for one of Python's standard streams, and shows its lines. It is no terminal, but has
    the stream's file descriptor, to which native code and other processes write as before."""

    def __init__(self, stream: TextIO, show: Callable[[str], None]) -> None:
        """`show`: called with each line. What it prints itself goes to `stream`."""
        self._raw = _PrintedBytes(stream, PrintedLines(show))
        super().__init__(self._raw, "utf-8", "backslashreplace", "\n", write_through=True)

    def end(self) -> None:
        """Show what is left of the last line."""
        self._raw.lines.end()


class _PrintedBytes(io.RawIOBase):
    def __init__(self, stream: TextIO, lines: PrintedLines) -> None:
        self.lines, self.name = lines, getattr(stream, "name", "<log>")
        self._stream = stream

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        if getattr(_thread, "is_showing", False):  # `show` fails, and says so
            self._stream.write(bytes(data).decode(errors="replace"))
            return len(data)
        _thread.is_showing = True
        try:
            self.lines.take(bytes(data))
        finally:
            _thread.is_showing = False
        return len(data)


@contextmanager
def prints_shown(show: Callable[[str], None]) -> Iterator[None]:
    """Call `show` with each line that Python code of this process prints.

    Native code is not covered, on purpose: a pipe that this process reads itself would lose the
    last words of a crash, and would block native code that fills it and holds Python's lock.
    """
    streams = sys.stdout, sys.stderr
    shown = [PrintedText(stream, show) for stream in streams]
    sys.stdout, sys.stderr = shown
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        for one in shown:
            one.end()
