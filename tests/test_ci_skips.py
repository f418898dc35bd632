"""CI cannot be green because something was not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import pytest
def test_without_a_compiler(): pytest.skip("there is no compiler")
def test_without_a_gpu(): pytest.skip("needs a GPU")
@pytest.mark.skipif(True, reason="a package is not installed")
def test_without_a_package(): pass
"""


@pytest.mark.parametrize(
    ("ci", "outcome"),
    [("true", "1 failed, 1 skipped, 1 error"), ("", "3 skipped")],
    ids=["in ci", "elsewhere"],
)
def test_a_skip_is_a_failure_in_ci_alone(tmp_path: Path, ci: str, outcome: str) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "tests.ci_skips", str(file)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert outcome in done.stdout, done.stdout + done.stderr
