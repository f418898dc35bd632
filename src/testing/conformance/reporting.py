"""Attaches times and findings, which fail no test, to the report of the suites."""

from __future__ import annotations

Report = list[tuple[str, object]]
"""The properties of a test: names and values."""
REPORT_PREFIX = "tokenmill: "
"""Prefix of the names of properties that the pytest plugin prints at the end of a run."""
FINDING_PREFIX = "tokenmill finding: "
"""Prefix of the names of properties that describe a possible problem."""


def report_finding(report: Report, finding: str) -> None:
    """Attach a finding to the test: a possible problem that the plugin's author should know."""
    report.append((FINDING_PREFIX + finding, ""))


def report_growth(report: Report, growth: str | None) -> None:
    """Report memory growth as a finding; None reports nothing."""
    if growth is not None:
        report_finding(report, growth)


def report_time(report: Report, what: str, seconds: float) -> None:
    """Attach a time to the test: printed at the end of the run, and written to JUnit XML."""
    scaled = f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
    report.append((REPORT_PREFIX + what, scaled))
