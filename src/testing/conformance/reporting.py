"""Times that the suites measure and report, without judging them."""

from __future__ import annotations

import pytest

REPORT_PREFIX = "tokenmill: "
"""Begins the name of every property that the pytest plugin prints at the end of a run."""


def report_time(request: pytest.FixtureRequest, what: str, seconds: float) -> None:
    """Attach a time to the test: printed at the end of the run, and written to JUnit XML."""
    scaled = f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
    request.node.user_properties.append((REPORT_PREFIX + what, scaled))
