"""The checks as parts: pytest in a process of its own, and in another for what it could not finish.

A kernel that fails takes the device from its process. tests/gpu/conftest.py ends it then; what it
had not come to yet is worth knowing, too.
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
}
PYTEST = ("-v", "--tb=short", "-p", "no:cacheprovider", "-p", "no:randomly")
INI = ("filterwarnings=default", "faulthandler_timeout=60")
"""What other packages of the machine warn of is none of our tests' business."""
DEVICE_FAILED = 3
"""The exit status of tests/gpu/conftest.py."""
MOST_RESTARTS = 4
"""After so many failures of the device there is enough to mend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Tests of one file with one backend."""

    backend: str
    kind: str
    """A key of CHECKS."""
    device: str
    select: str
    """As pytest's -k; empty: all."""
    results: Path
    """Each finished test is a line of JSON in it."""

    @property
    def name(self) -> str:
        return f"{self.backend} {self.kind}"

    def part(self, environment: Mapping[str, str]) -> Part:
        """Those tests of it that are not among the results."""
        path = CHECKS[self.kind]
        chosen = ["-k", self.select] if self.select else []
        for test in self.found():
            chosen += ["--deselect", f"{path}::{test['test']}"]
        told = {
            "TOKENMILL_CHECK_BACKENDS": self.backend,
            "TOKENMILL_CHECK_DEVICE": self.device,
            "TOKENMILL_CHECK_RESULTS": str(self.results),
        }
        ini = [word for option in INI for word in ("-o", option)]
        return Part(
            name=self.name,
            command=[sys.executable, "-m", "pytest", path, *PYTEST, *ini, *chosen],
            environment={**environment, **told},
        )

    def rest(self, environment: Mapping[str, str], ended: Ended) -> Part | None:
        """What is left to run after a failure of the device; None: nothing, or it is no use."""
        failures = sum(test.get("lost_the_device", False) for test in self.found())
        if ended.exit_status != DEVICE_FAILED or failures > MOST_RESTARTS:
            return None
        return self.part(environment)

    def found(self) -> list[dict[str, Any]]:
        """The tests that ended so far."""
        return read_lines(self.results)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines of JSON; the last may be torn where a process was killed."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found
