"""A test that uses too much CPU time fails, and says how much and where."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from .cpu_times import costs_of, folder_of, module_of, sums_by, with_total

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import subprocess, sys, time
import pytest
from tokenmill.backends.machine.compiling import cache_folder

BURN = "import time\\nwhile time.process_time() < 0.3: pass"

def burn():
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass

@pytest.fixture
def dear():
    burn()

def test_itself():
    burn()

def test_fixture(dear):
    pass

def test_child():
    subprocess.run([sys.executable, "-c", BURN], check=True)

def test_that_sleeps():
    time.sleep(0.5)

@pytest.mark.check
def test_of_another_tier():
    burn()

def test_that_builds():
    burn()
    cache_folder().mkdir(parents=True)
    (cache_folder() / "library.so").touch()
"""
QUICK = """
from pathlib import Path
from tests import cpu_budget
cpu_budget.LIMIT, cpu_budget.REFERENCE_SECONDS = 0.2, 9.0
cpu_budget.HERE = Path(__file__).parent
"""


def test_own_time_fixtures_and_children_count_but_not_sleep_or_what_is_built_once(
    tmp_path: Path,
) -> None:
    """With a limit of 0.2 seconds."""
    (tmp_path / "test_some.py").write_text(QUICK + TESTS)
    flags = ["-q", "-c", os.devnull, f"--rootdir={tmp_path}", "-p", "tests.cpu_budget", "-W"]
    flags += ["ignore", "--cpu-times", str(tmp_path / "times")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, str(tmp_path / "test_some.py")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert "6 passed, 3 errors" in done.stdout, done.stdout + done.stderr
    assert set(re.findall(r"ERROR at teardown of (\w+)", done.stdout)) == {
        "test_itself",
        "test_fixture",
        "test_child",
    }
    assert re.search(r"used 0\.\d CPU seconds .* has 0\.2 .*: make it smaller", done.stdout)
    lines = (tmp_path / "times").read_text().splitlines()
    rows = {row["test"]: row for row in map(json.loads, lines)}
    assert len(rows) == 6
    own, children, _ = rows["test_some.py::test_child"]["call"]
    assert own < children and children > 0.2
    assert rows["test_some.py::test_fixture"]["setup"][0] > 0.2
    own, _, passed = rows["test_some.py::test_that_sleeps"]["call"]
    assert own < 0.2 < 0.5 < passed


def test_the_table_adds_up_folders_and_puts_the_dearest_first() -> None:
    rows = [
        {
            "test": "tests/a/b/c/test_x.py::one",
            "setup": [1, 0, 1],
            "call": [2, 3, 9],
            "teardown": [4, 5, 7],
        },
        {"test": "tests/a/b/test_y.py::two", "setup": [1, 0, 1], "call": [1, 0, 1]},
        {"test": "tests/test_z.py::three", "setup": [20, 0, 20]},
    ]
    costs = {row["test"]: costs_of(row) for row in rows}
    assert costs["tests/a/b/c/test_x.py::one"] == (15, 5, 2, 8, 17)
    assert sums_by(module_of, costs)[0] == ("tests/test_z.py", [20, 20, 0, 0, 20])
    assert with_total(sums_by(folder_of, costs)) == [
        ("tests", [20, 20, 0, 0, 20]),
        ("tests/a/b", [17, 6, 3, 8, 19]),
        ("all", [37, 26, 3, 8, 39]),
    ]
