"""What the suites measure and notice, without judging it: times and findings."""

from __future__ import annotations

import pytest

REPORT_PREFIX = "tokenmill: "
"""Begins the name of every property that the pytest plugin prints at the end of a run."""
FINDING_PREFIX = "tokenmill finding: "
"""Begins the name of a property that says what may become a problem."""


def report_finding(request: pytest.FixtureRequest, finding: str) -> None:
    """Attach something that does not fail the check, and that its author should know."""
    request.node.user_properties.append((FINDING_PREFIX + finding, ""))


def report_growth(request: pytest.FixtureRequest, growth: str | None) -> None:
    """`report_finding`, if there is one."""
    if growth is not None:
        report_finding(request, growth)


def report_time(request: pytest.FixtureRequest, what: str, seconds: float) -> None:
    """Attach a time to the test: printed at the end of the run, and written to JUnit XML."""
    scaled = f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
    request.node.user_properties.append((REPORT_PREFIX + what, scaled))
