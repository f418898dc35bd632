"""With CI=true a skipped test is a failure, unless what it needs is a GPU or another CPU."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import Any

import pytest

EXCUSED = re.compile(
    r"GPU|CUDA|this CPU does not run|other systems|this system has|looks into /proc"
    r"|refused: |needs no hidden states"
)
"""Reasons that no installation could remove: hardware, the operating system, and what a backend
refuses by design."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip for any other reason into a failure."""
    report = yield
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return report
    reason: Any = report.longrepr
    said = reason[2] if isinstance(reason, tuple) else str(reason)
    if item.get_closest_marker("gpu") is None and EXCUSED.search(said) is None:
        report.outcome = "failed"
        report.longrepr = f"skipped although CI=true: {said}"
    return report
