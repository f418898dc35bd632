"""Log records travel to the parent's process, which formats and filters them like its own."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress

import msgspec

from ..log import event_fields

ROOT = "tokenmill"
LIBRARIES = ("opentelemetry", "asyncio")
"""Loggers of libraries whose warnings an operator should see."""
SEND_SECONDS = 1.0
"""Time to send a record. Then it is dropped: a parent that does not read must not stop the
engine."""
MAX_TEXT = 1 << 15
"""Characters of a record's text, and of a field; a longer one is cut."""
MAX_DATAGRAM = 1 << 20


class Record(msgspec.Struct, array_like=True, frozen=True):
    """The parts of a logging.LogRecord that formatters use."""

    name: str
    level: int
    text: str
    created: float
    error: str | None
    fields: dict[str, str | int | float | bool | None]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


class Forwarder(logging.Handler):
    """Sends each record as one datagram. Works from any thread, even if the event loop hangs."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        sock.settimeout(SEND_SECONDS)
        self._sock = sock
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_text
        if error is None and record.exc_info:
            error = self._formatter.formatException(record.exc_info)
        message = Record(
            name=record.name,
            level=record.levelno,
            text=record.getMessage()[:MAX_TEXT],
            created=record.created,
            error=error and error[-MAX_TEXT:],
            fields={k: _plain(v) for k, v in event_fields(record).items()},
        )
        try:
            self._sock.send(_encode(message))
        except OSError:
            pass  # the parent does not read
        except Exception:  # a field that cannot be encoded must not end its caller
            self.handleError(record)


def forward_logs(sock: socket.socket, level: int) -> None:
    """Send the records of tokenmill, and warnings of LIBRARIES, to the parent, and nowhere else."""
    handler = Forwarder(sock)
    for name, at_least in ((ROOT, level), *((name, logging.WARNING) for name in LIBRARIES)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(at_least)
        logger.propagate = False


def receive_logs(sock: socket.socket) -> None:
    """Handle the records that have arrived on a non-blocking socket, in this process's way."""
    with suppress(BlockingIOError):
        while data := sock.recv(MAX_DATAGRAM):
            _handle(_decode(data))


def _handle(found: Record) -> None:
    record = logging.makeLogRecord(found.fields)
    record.name, record.msg, record.created = found.name, found.text, found.created
    record.levelno, record.levelname = found.level, logging.getLevelName(found.level)
    record.exc_text = found.error
    logger = logging.getLogger(found.name)
    if logger.isEnabledFor(found.level):
        logger.handle(record)


def _plain(value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, int | float | bool):
        return value
    text = value if isinstance(value, str) else repr(value)
    return text[:MAX_TEXT]
