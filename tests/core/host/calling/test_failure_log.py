"""Which failures of plugins are logged."""

from __future__ import annotations

import pytest

from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.host.calling import failure_log
from tokenmill.core.host.calling.failure_log import LOG_SECONDS, FailureLog

SOURCE = Source(plugin="acme", distribution="acme-plugin", version="1.0")


def test_a_plugin_that_fails_all_the_time_has_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logged(monkeypatch, seconds=0.001, count=1000) == [1, 10, 100, 1000]


def test_one_that_fails_seldom_has_a_line_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logged(monkeypatch, seconds=LOG_SECONDS, count=5) == [1, 2, 3, 4, 5]
    assert logged(monkeypatch, seconds=LOG_SECONDS / 2, count=6) == [1, 3, 5]


def logged(patch: pytest.MonkeyPatch, *, seconds: float, count: int) -> list[int]:
    """The counts that are logged if a hook fails every few seconds."""
    now = [0.0]
    lines: list[int] = []
    patch.setattr(failure_log.time, "monotonic", lambda: now[0])
    patch.setattr(failure_log._log, "warning", lambda event, count, **more: lines.append(count))
    log = FailureLog(lambda event: None)
    for _ in range(count):
        log.record(SOURCE, "schedule", "no", "ignored")
        now[0] += seconds
    return lines
