"""With CI=true a skipped test fails, unless what it needs is a GPU or another CPU.

Otherwise CI could be green because something was not installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

EXCUSED = re.compile(
    r"GPU|CUDA|this CPU does not run|other systems|this system has|looks into /proc"
    r"|refused: |needs no hidden states|reads x86-64 machine code"
)
"""Reasons that no installation could remove: hardware, the operating system, and what a backend
refuses by design."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Check the skip of a test."""
    report = yield
    if item.get_closest_marker("gpu") is None:
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    """Check the skip of a whole file."""
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: Any) -> None:
    """An expected failure is reported as a skip, and is none."""
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if EXCUSED.search(reason) is None:
        report.outcome = "failed"
        report.longrepr = f"skipped although CI=true: {reason}"
