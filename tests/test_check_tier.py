"""What `make check` does with a check that skips."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = """
import pytest

def test_that_skips():
    pytest.skip("objdump is missing")

@pytest.mark.gpu
def test_that_needs_a_gpu():
    pytest.skip("needs a CUDA device")

@pytest.mark.xfail(strict=True)
def test_that_is_known_to_fail():
    assert False

def test_that_passes():
    pass
"""
SETTINGS = """
[pytest]
addopts = -p no:randomly -p no:cacheprovider -m "not check"
markers =
    check
    gpu
"""


def run_checks(folder: Path, ci: str, checks: str = CHECKS) -> subprocess.CompletedProcess[str]:
    shutil.copy(Path(__file__).parent / "check" / "conftest.py", folder)
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "test_checks.py").write_text(checks)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "check", "-rs", str(folder)],
        cwd=folder,
        env=environment | {"CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_machine_that_lacks_a_part_skips_its_checks(tmp_path: Path) -> None:
    done = run_checks(tmp_path, ci="")
    assert done.returncode == 0 and "1 passed, 2 skipped, 1 xfailed" in done.stdout


def test_ci_lets_no_check_skip_but_those_that_need_a_gpu(tmp_path: Path) -> None:
    done = run_checks(tmp_path, ci="true")
    assert done.returncode == 1
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed" in done.stdout
    assert "CI=true allows no skipped check: Skipped: objdump is missing" in done.stdout


@pytest.mark.parametrize(("ci", "status"), [("", 5), ("true", 2)])
def test_ci_lets_no_file_of_checks_skip(ci: str, status: int, tmp_path: Path) -> None:
    skipping = 'import pytest\npytest.skip("no qemu", allow_module_level=True)\n'
    done = run_checks(tmp_path, ci, skipping)
    assert done.returncode == status, done.stdout
    assert ("CI=true allows no skipped check" in done.stdout) is (ci == "true")
