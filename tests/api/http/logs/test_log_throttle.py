"""The log shows a repeated line once per interval, and says how many it left out."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tokenmill.api.http.logs import log_throttle
from tokenmill.api.http.logs.log_throttle import Throttle
from tokenmill.api.server import configure_logging


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "other", "msg": text, "levelno": logging.WARNING})


def test_a_repeated_line_is_shown_once_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(log_throttle.time, "monotonic", lambda: now[0])
    throttle = Throttle()
    assert [throttle.filter(record("bad")) for _ in range(5)] == [True] + [False] * 4
    assert throttle.filter(record("other"))
    now[0] += log_throttle.INTERVAL
    again = record("bad")
    assert throttle.filter(again)
    assert again.num_dropped == 4  # type: ignore[attr-defined]


@pytest.fixture
def _own_logging() -> Iterator[None]:
    names = ("tokenmill", "uvicorn.error", "asyncio", "opentelemetry")
    loggers = list(map(logging.getLogger, names))
    before = [(one.handlers, one.level, one.propagate) for one in loggers]
    yield
    for one, (handlers, level, propagate) in zip(loggers, before, strict=True):
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)


@pytest.mark.usefixtures("_own_logging")
def test_repeated_lines_of_other_libraries_are_left_out_but_no_events_of_ours(
    capfd: pytest.CaptureFixture[str],
) -> None:
    configure_logging("info")
    for name in ("opentelemetry.sdk.trace", "tokenmill.engine"):
        for _ in range(3):
            logging.getLogger(name).warning("again by %s", name)
    lines = capfd.readouterr().err.split("\n")
    assert [sum(name in line for line in lines) for name in ("opentel", "tokenm")] == [1, 3]
