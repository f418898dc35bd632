"""Logs are structlog events with names, sent through the standard library's "tokenmill" logger.

This module configures nothing globally. A program that embeds the engine keeps its own structlog
and logging configuration, and gets warnings through `logging` as from any library.
`tokenmill serve` attaches its own handler.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

import structlog
from structlog.contextvars import get_contextvars

from .wording.tracebacks import plugin_frames_first

_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

_encode = json.JSONEncoder(default=str).encode


class EventFormatter(logging.Formatter):
    """Formats a log record as one line `event key=value ...`, for the "tokenmill" logger.

    The traceback of an exception follows. In an event about a plugin, its frames come first.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        fields = event_fields(record)
        trace = fields.pop("exception", None) or traceback_of(record)
        line = _line(self.formatMessage(record), fields)
        if trace and "plugin" in fields:
            trace = plugin_frames_first(trace)
        return f"{line}\n{trace}" if trace else line


class JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON object: time (UTC), level, logger, event and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if trace := traceback_of(record):
            line["exception"] = trace
        return _encode(line | event_fields(record))


def traceback_of(record: logging.LogRecord) -> str | None:
    """The traceback of a record that has an exception. Events have it as the field "exception"."""
    if record.exc_info:
        return logging.Formatter().formatException(record.exc_info)
    return record.exc_text  # all that a record of another process has


def event_fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of an event, and those of its context, such as the id of the HTTP request.

    Names that begin with "_" are left out: libraries such as Ray add them to every record.
    """
    own = {
        k: v for k, v in vars(record).items() if k not in _RECORD_FIELDS and not k.startswith("_")
    }
    return get_contextvars() | own


def _line(text: str, fields: dict[str, Any]) -> str:
    values = (f"{k}={v!r}" if isinstance(v, str) else f"{k}={v}" for k, v in fields.items())
    return " ".join([text, *values])


def _to_record(logger: Any, method: str, event: Any) -> Any:
    """A record for `logging`: the event's name, and its fields as attributes of the record. If the
    program has not set up logging, Python prints nothing but the message, so it has the fields."""
    record: Any = structlog.stdlib.render_to_log_kwargs(logger, method, event)
    if not logger.hasHandlers():
        record["msg"] = _line(record["msg"], record["extra"])
    return record


_PROCESSORS: list[Any] = [
    structlog.stdlib.filter_by_level,
    structlog.processors.format_exc_info,
    _to_record,
]


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of one room, for example get_logger("engine")."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(f"tokenmill.{name}"),
        processors=_PROCESSORS,
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger
