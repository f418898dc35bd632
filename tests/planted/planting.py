"""Plants a bug in a copy of one source file, and sees which test finds it.

The simulator's bugs replace functions of the core (tests/simulation/planted_bugs.py). These replace
text, because parsers, HTTP and kernels are tested by whole files of tests, each run in a process of
its own. The sources stay as they are: `plugin.py` changes them while they are imported.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"
VARIABLE = "TOKENMILL_PLANTED_BUG"
"""The bug for the process of the tests, as JSON: its file, the text, and what replaces it."""
DRAW = 2
"""The seed that draws the bugs of `make check`."""
FOUND = 7
"""Exit status of a run in which a test failed for a reason that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A bug that somebody could write: text of a file that is replaced once."""

    file: str
    """Relative to src."""
    old: str
    new: str
    test: str
    """The file of tests, or the test, that must find it."""
    caught_as: str = "AssertionError"
    """The exception that shows it. A bug that raises another one does not fit the code."""

    def changed(self) -> str:
        """The text of its file with the bug. The text that is replaced must be there once."""
        source = (SOURCES / self.file).read_text(encoding="utf-8")
        assert source.count(self.old) == 1, f"{self.file} has {source.count(self.old)} x {self.old}"
        return source.replace(self.old, self.new)


def run_tests(bug: Bug, *options: str) -> tuple[bool, str]:
    """Whether the bug's test finds it, and what pytest prints. Stops at the first failure."""
    planted = {"file": bug.file, "source": bug.changed(), "caught_as": bug.caught_as}
    flags = ["-q", "-x", "-n0", "-p", "tests.planted.plugin", "-p", "no:randomly", *options]
    flags += ["-p", "no:tests.cpu_budget"]  # a bug may make a test slow before it fails
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, bug.test],
        cwd=ROOT,
        env=os.environ | {VARIABLE: json.dumps(planted)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode == FOUND, done.stdout


def params(names: Collection[str]) -> list[Any]:
    """Names of bugs of one kind: one for `make check`, and the others for `make soak`."""
    drawn = random.Random(DRAW).choice(sorted(names))
    check, soak = pytest.mark.check, pytest.mark.soak
    return [pytest.param(name, marks=check if name == drawn else soak) for name in names]
