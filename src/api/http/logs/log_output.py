"""Writes the log to standard error, and never waits for the program that reads it."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys

from ....core.processes.printed import PrintedText

_PIECE = 4096
"""Bytes that a pipe takes without waiting if it takes any (PIPE_BUF)."""


def log_handler() -> logging.Handler:
    """A handler for standard error, which may be replaced by an object without a file."""
    try:
        return LogOutput(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):
        return logging.StreamHandler()


class LogOutput(logging.Handler):
    """Writes lines to a file descriptor. Lines for which a pipe has no room are dropped and
    counted: a log collector that hangs must not stop the server.

    While a progress display owns standard error, lines go through it, so that they appear above it.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._stream = sys.stderr
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._num_dropped = 0
        self._is_torn = False
        """Whether only the beginning of the last line was written."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, and before it the number of those that were dropped."""
        try:
            lines = self.format(record) + "\n"
            if self._num_dropped:
                lines = f"{self.format(_dropped(self._num_dropped))}\n{lines}"
        except Exception:
            self.handleError(record)
            return
        if self._is_owned():
            sys.stderr.write(lines)
        elif self._write(("\n" * self._is_torn + lines).encode(errors="backslashreplace")):
            self._num_dropped = 0
        else:
            self._num_dropped += 1

    def _is_owned(self) -> bool:
        return sys.stderr is not self._stream and not isinstance(sys.stderr, PrintedText)

    def _write(self, data: bytes) -> bool:
        for begin in range(0, len(data), _PIECE):
            if not self._poll.poll(0):
                return False
            with contextlib.suppress(OSError):  # nobody can read it any more, or the disk is full
                os.write(self._fd, data[begin : begin + _PIECE])
            self._is_torn = begin + _PIECE < len(data)
        return True


def _dropped(number: int) -> logging.LogRecord:
    return logging.makeLogRecord(
        {
            "name": "tokenmill.api",
            "levelno": logging.WARNING,
            "levelname": "WARNING",
            "msg": "log_lines_dropped",
            "number": number,
            "reason": "nobody reads standard error fast enough",
        }
    )
