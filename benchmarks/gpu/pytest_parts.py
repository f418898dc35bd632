"""The checks as parts: each runs pytest in its own process, and again for unfinished tests.

A process loses the device when a kernel fails. tests/gpu/conftest.py then ends the process, and
another process runs the remaining tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts import Ended, Part

CHECKS = {
    "attention": "tests/gpu/test_attention.py",
    "conformance": "tests/gpu/test_conformance.py",
    "engine": "tests/gpu/test_engine.py",
    "auto": "tests/gpu/test_auto.py",
}
AUTO = "auto"
"""The name of a check and of its only backend: the check chooses its backends itself."""
PYTEST = ("-v", "--tb=short", "-p", "no:cacheprovider", "-p", "no:randomly")
INI = ("filterwarnings=default", "faulthandler_timeout=60")
"""Warnings of the machine's packages must not fail our tests."""
DEVICE_FAILED = 3
"""The exit status with which tests/gpu/conftest.py reports a lost device."""
MOST_RESTARTS = 4
"""Maximum number of restarts of one check after failures of the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The tests of one file with one backend."""

    backend: str
    kind: str
    """A key of CHECKS."""
    device: str
    select: str
    """The tests to run, as in pytest's -k; empty for all."""
    results: Path
    """A file with a line of JSON for each finished test."""

    @property
    def name(self) -> str:
        return f"{self.backend} {self.kind}"

    def part(self, environment: Mapping[str, str]) -> Part:
        """The part that runs all tests without a result."""
        path = CHECKS[self.kind]
        chosen = ["-k", self.select] if self.select else []
        for test in self.found():
            chosen += ["--deselect", f"{path}::{test['test']}"]
        settings = {
            "TOKENMILL_CHECK_BACKENDS": self.backend,
            "TOKENMILL_CHECK_DEVICE": self.device,
            "TOKENMILL_CHECK_RESULTS": str(self.results),
        }
        ini = [word for option in INI for word in ("-o", option)]
        return Part(
            name=self.name,
            command=[sys.executable, "-m", "pytest", path, *PYTEST, *ini, *chosen],
            environment={**environment, **settings},
        )

    def rest(self, environment: Mapping[str, str], ended: Ended) -> Part | None:
        """The part that continues after a lost device; None for other ends, or too many losses."""
        failures = sum(test.get("lost_the_device", False) for test in self.found())
        if ended.exit_status != DEVICE_FAILED or failures > MOST_RESTARTS:
            return None
        return self.part(environment)

    def found(self) -> list[dict[str, Any]]:
        """The results of the tests so far."""
        return read_lines(self.results)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read lines of JSON. An incomplete line, of a process that was killed, is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found
