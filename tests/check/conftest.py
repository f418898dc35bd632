"""The tier of `make check`: tests that need more than pip gives, and install it themselves.

A test whose parts are missing is skipped. Under CI=true a skipped check is a failure unless it is
marked `gpu`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, before markers select what runs."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.check)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if not item.get_closest_marker("gpu"):
        refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    refuse_skip(report)
    return report


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Under CI=true a skipped report becomes a failed one. An expected failure is no skip."""
    if not report.skipped or hasattr(report, "wasxfail") or os.environ.get("CI") != "true":
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"CI=true allows no skipped check: {reason}"
