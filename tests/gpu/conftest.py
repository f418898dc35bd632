"""For the checks on a GPU: which backends, what a crash of the device ends, and a protocol.

Each finished test is one line of JSON in the file that TOKENMILL_CHECK_RESULTS names, written at
once, so that what was found stays when the process dies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from .contenders import DEVICE, NAMES

RESULTS = os.environ.get("TOKENMILL_CHECK_RESULTS")


@pytest.fixture(params=NAMES)
def backend_name(request: pytest.FixtureRequest) -> str:
    """Every backend and pair that is checked here."""
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def the_device_survives() -> Iterator[None]:
    """A kernel that fails does so at the next synchronization: here, and not in another test. After
    such a failure the device is lost to this process."""
    yield
    if DEVICE.type == "cuda" and torch.cuda.is_available():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            pytest.exit(f"the device failed in this test or the one before: {error}", 3)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test ends with its call, or before it with what its set-up says."""
    if RESULTS is None or (report.when != "call" and report.passed):
        return
    line = {
        "test": report.nodeid.partition("::")[2],
        "file": Path(report.location[0]).stem,
        "outcome": report.outcome,
        "seconds": round(report.duration, 3),
        "message": _message(report),
        **dict(report.user_properties),
    }
    with open(RESULTS, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _message(report: pytest.TestReport) -> str:
    """Why it was skipped, or the error itself, which stands at the end of a report."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    errors = [line[1:].strip() for line in report.longreprtext.splitlines() if line[:2] == "E "]
    return "\n".join(errors[:6]) or report.longreprtext[-500:]
