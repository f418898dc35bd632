"""Logs are structlog events with names, sent through the standard library's "tokenmill" logger.

This module configures nothing globally. A program that embeds the engine keeps its own structlog
and logging configuration, and gets warnings through `logging` as from any library.
`tokenmill serve` attaches its own handler.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

_PROCESSORS: list[Any] = [
    structlog.stdlib.filter_by_level,
    structlog.processors.format_exc_info,
    structlog.stdlib.render_to_log_kwargs,
]


class EventFormatter(logging.Formatter):
    """Formats a log record as one line `event key=value ...`, for the "tokenmill" logger."""

    _own = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields_of(record)
        text = super().format(record)
        return " ".join(
            [text, *(f"{k}={v!r}" if isinstance(v, str) else f"{k}={v}" for k, v in fields.items())]
        )

    @classmethod
    def fields_of(cls, record: logging.LogRecord) -> dict[str, object]:
        """The fields of the event."""
        return {name: value for name, value in vars(record).items() if name not in cls._own}


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of one room, for example get_logger("engine")."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(f"tokenmill.{name}"),
        processors=_PROCESSORS,
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger
