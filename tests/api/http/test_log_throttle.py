"""The log shows a repeated line once per interval, and says how many it left out."""

from __future__ import annotations

import logging

import pytest

from tokenmill.api.http import log_throttle
from tokenmill.api.http.log_throttle import Throttle


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text, "levelno": logging.WARNING})


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
