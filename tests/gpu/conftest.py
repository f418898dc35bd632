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
DEVICE_FAILED = 3
"""The exit status that says so."""


@pytest.fixture(params=NAMES)
def backend_name(request: pytest.FixtureRequest) -> str:
    """Every backend and pair that is checked here."""
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def the_device_survives(request: pytest.FixtureRequest) -> Iterator[None]:
    """A kernel that fails does so at the next synchronization: here, and not in another test. After
    such a failure this process has lost the device: benchmarks/gpu starts another for the rest."""
    yield
    if DEVICE.type == "cuda" and torch.cuda.is_available():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            message = f"the device failed: {error}"
            _write(request.node.nodeid, "failed", message=message, lost_the_device=True)
            pytest.exit(message, DEVICE_FAILED)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test ends with its call, or before it with what its set-up says."""
    if report.when == "call" or not report.passed:
        more = {"seconds": round(report.duration, 3), **dict(report.user_properties)}
        _write(report.nodeid, report.outcome, message=_message(report), **more)


def _write(nodeid: str, outcome: str, **more: object) -> None:
    if RESULTS is not None:
        path, _, test = nodeid.partition("::")
        line = {"test": test, "file": Path(path).stem, "outcome": outcome, **more}
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
