"""Attaches times and findings, which fail no test, to the report of the suites."""

from __future__ import annotations

import pytest

REPORT_PREFIX = "tokenmill: "
"""Prefix of the names of properties that the pytest plugin prints at the end of a run."""
FINDING_PREFIX = "tokenmill finding: "
"""Prefix of the names of properties that describe a possible problem."""


def report_finding(request: pytest.FixtureRequest, finding: str) -> None:
    """Attach a finding to the test: a possible problem that the plugin's author should know."""
    request.node.user_properties.append((FINDING_PREFIX + finding, ""))


def report_growth(request: pytest.FixtureRequest, growth: str | None) -> None:
    """Report memory growth as a finding; None reports nothing."""
    if growth is not None:
        report_finding(request, growth)


def report_time(request: pytest.FixtureRequest, what: str, seconds: float) -> None:
    """Attach a time to the test: printed at the end of the run, and written to JUnit XML."""
    scaled = f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
    request.node.user_properties.append((REPORT_PREFIX + what, scaled))
