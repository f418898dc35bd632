"""Writes what `make soak` ran to benchmarks/results/soak.json, test by test.

Each test replaces its own last result. So a soak that was interrupted leaves what it did, and can
be continued.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "soak.json"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a soak test that ended; with xdist, in the process that shows the results."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if "soak" in report.keywords and is_end(report) and not is_worker:
        add(RESULTS, report, commit())


def is_end(report: pytest.TestReport) -> bool:
    """Whether it is the report of the test itself, or of a fixture that failed."""
    return not report.skipped and (report.when == "call" or report.failed)


def add(path: Path, report: pytest.TestReport, commit: str) -> None:
    """Write a test's outcome, its seconds, and what it recorded with `record_property`."""
    from benchmarks.recording import describe_machine  # it imports torch

    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    file, _, name = report.nodeid.partition("::")
    tests = found.get(file, {}).get("tests", {})
    tests[name] = {
        "outcome": report.outcome,
        "seconds": round(report.duration),
        **dict(report.user_properties),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit,
    }
    found[file] = {"machine": describe_machine(), "tests": dict(sorted(tests.items()))}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(dict(sorted(found.items())), indent=2) + "\n", encoding="utf-8")
    new.replace(path)


def commit() -> str:
    """The commit of the tests; "unknown" without git."""
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "tests")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with changes" if changed else "")


def git(*arguments: str) -> str:
    try:
        ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return ran.stdout.strip()
