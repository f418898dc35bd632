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

def test_without_a_compiler():
    pytest.skip("there is no compiler")

def test_without_the_cpu():
    pytest.skip("this CPU does not run avx512")

@pytest.mark.gpu
def test_without_the_device():
    pytest.skip("there is none")

@pytest.mark.skipif(True, reason="a package is not installed")
def test_without_a_package():
    pass

@pytest.mark.xfail(strict=True)
def test_that_is_known_to_fail():
    assert False
"""
SKIPPED_FILE = 'import pytest\npytest.skip("no qemu", allow_module_level=True)\n'


def run_tests(folder: Path, tests: str, ci: str) -> subprocess.CompletedProcess[str]:
    file = folder / "test_some.py"
    file.write_text(tests)
    flags = ["-q", "-c", os.devnull, "-p", "tests.ci_skips", "-W", "ignore"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *flags, str(file)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=False,
    )


@pytest.mark.parametrize(
    ("ci", "outcome"),
    [("true", "1 failed, 2 skipped, 1 xfailed, 1 error"), ("", "4 skipped, 1 xfailed")],
    ids=["in ci", "elsewhere"],
)
def test_a_skip_is_a_failure_in_ci_alone(tmp_path: Path, ci: str, outcome: str) -> None:
    done = run_tests(tmp_path, TESTS, ci)
    assert outcome in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("ci", "status"), [("true", 2), ("", 5)], ids=["in ci", "elsewhere"])
def test_a_whole_file_that_is_skipped_is_a_failure_too(
    tmp_path: Path, ci: str, status: int
) -> None:
    done = run_tests(tmp_path, SKIPPED_FILE, ci)
    assert done.returncode == status, done.stdout
    assert ("skipped although CI=true: Skipped: no qemu" in done.stdout) is (ci == "true")
