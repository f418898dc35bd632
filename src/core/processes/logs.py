"""Log records travel to the parent's process, which formats and filters them like its own."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType

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
MAX_ITEMS = 64
"""Items of a list in a field; a longer one becomes a text."""
PART_BYTES = 2000
"""Bytes of a record in one datagram. macOS refuses datagrams of more than 2,048 bytes."""
FIRST, LAST = 1, 2
"""Bits of the byte with which each part begins."""

Plain = str | int | float | bool | None
NO_FIELDS: Mapping[str, Plain] = MappingProxyType({})


class Record(msgspec.Struct, array_like=True, frozen=True):
    """The parts of a logging.LogRecord that formatters use."""

    name: str
    level: int
    text: str
    created: float
    error: str | None
    fields: dict[str, Plain | list[Plain]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


class Forwarder(logging.Handler):
    """Sends each record. Works from any thread, even if the event loop hangs."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        """`send`: sends an encoded record; raises OSError if it cannot."""
        super().__init__()
        self._send = send
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
            fields={k: _field(v) for k, v in event_fields(record).items()},
        )
        try:
            self._send(_encode(message))
        except OSError:
            pass  # the parent does not read
        except Exception:  # a field that cannot be encoded must not end its caller
            self.handleError(record)


def forward_logs(sock: socket.socket, level: int) -> None:
    """Send records to the parent as datagrams, and nowhere else."""
    sock.settimeout(SEND_SECONDS)
    forward_records(partial(send_parts, sock), level)


def forward_records(send: Callable[[bytes], None], level: int) -> None:
    """Give the records of tokenmill, and warnings of LIBRARIES, to `send`, and to nothing else."""
    handler = Forwarder(send)
    for name, at_least in ((ROOT, level), *((name, logging.WARNING) for name in LIBRARIES)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(at_least)
        logger.propagate = False


def current_level() -> int:
    """The level of tokenmill's records in this process, which its children take over."""
    return logging.getLogger(ROOT).getEffectiveLevel()


class LogReceiver:
    """Handles the records that arrive on a non-blocking socket, in this process's way."""

    def __init__(self, sock: socket.socket, fields: Mapping[str, Plain] = NO_FIELDS) -> None:
        """`fields`: additional fields of each record, such as the sender's rank."""
        self._sock, self._fields = sock, fields
        self._begun = b""

    def receive(self) -> None:
        """Handle the records that have arrived. One whose first part is missing is left out."""
        with suppress(BlockingIOError):
            while part := self._sock.recv(1 + PART_BYTES):
                is_first, is_last = part[0] & FIRST, part[0] & LAST
                self._begun = part[1:] if is_first else self._begun and self._begun + part[1:]
                if is_last and self._begun:
                    record, self._begun = self._begun, b""
                    handle_record(record, self._fields)


def send_parts(sock: socket.socket, record: bytes) -> None:
    for part in _parts(record):
        sock.send(part)


def _parts(record: bytes) -> Iterator[bytes]:
    for start in range(0, len(record), PART_BYTES):
        end = start + PART_BYTES
        bits = FIRST * (start == 0) + LAST * (end >= len(record))
        yield bytes([bits]) + record[start:end]


def handle_record(message: bytes, fields: Mapping[str, Plain] = NO_FIELDS) -> None:
    """Handle a record of another process, with more fields, as if this process had logged it."""
    found = _decode(message)
    record = logging.makeLogRecord(found.fields | dict(fields))
    record.name, record.msg, record.created = found.name, found.text, found.created
    record.levelno, record.levelname = found.level, logging.getLevelName(found.level)
    record.exc_text = found.error
    logger = logging.getLogger(found.name)
    if logger.isEnabledFor(found.level):
        logger.handle(record)


def _field(value: object) -> Plain | list[Plain]:
    if isinstance(value, list | tuple) and len(value) <= MAX_ITEMS:
        return [_plain(item) for item in value]
    return _plain(value)


def _plain(value: object) -> Plain:
    if value is None or isinstance(value, int | float | bool):
        return value
    text = value if isinstance(value, str) else repr(value)
    return text[:MAX_TEXT]
