"""A test that passed is left out until one byte of what it depends on changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\ntestpaths = ["own"]\nmarkers = ["check"]\n',
    "src/__init__.py": "",
    "src/used.py": "from .deeper import NUMBER\n",
    "src/deeper.py": "from .core.data import NUMBER as NUMBER\n",
    "src/other.py": "NUMBER = 1\n",
    "src/core/__init__.py": "",
    "src/core/data.py": "from . import decisions as decisions\nNUMBER = 1\n",
    "src/core/decisions.py": "",
    "src/kernels/sum.cpp": "int sum;\n",
    "tests/check/README": "",
    "own/__init__.py": "",
    "own/helper.py": "def expected():\n    return 1\n",
    "own/conftest.py": "",
    "own/test_kernels.py": """
import os, pytest
from own.helper import expected
from src import used
pytestmark = [pytest.mark.check, pytest.mark.depends_on("src/kernels")]

@pytest.mark.parametrize("number", [1, 2])
def test_sum(number):
    if "SKIPS" in os.environ:
        pytest.skip("the CPU lacks it")
    assert used.NUMBER == expected()
""",
    "own/test_all.py": """
import os, pytest
pytestmark = pytest.mark.check

def test_all():
    assert "FAILS" not in os.environ
""",
}
PROVEN = "2 tests proven by content: own/test_kernels.py"


class Checkout:
    """A small project under git, with its second tier."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def git(self, *arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=self.folder, check=True, capture_output=True)

    def check(self, *flags: str, **environment: str) -> str:
        """What `make check` prints in the end."""
        command = [sys.executable, "-m", "pytest", "-q", "-m", "check", "-p", "tests.check.proofs"]
        variables = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        command += ["--import-mode=importlib", "-p", "xdist", *flags]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=os.environ | variables | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    @property
    def list(self) -> Path:
        return self.folder / "tests" / "check" / "proofs.json"


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    made.git("init", "-q")
    made.git("add", ".")
    yield made


def test_only_the_same_inputs_are_proven(checkout: Checkout) -> None:
    assert "3 passed" in checkout.check()
    assert PROVEN in (again := checkout.check()) and "1 passed, 2 deselected" in again
    assert PROVEN in (parallel := checkout.check("-n2")) and "1 passed" in parallel
    inputs = ("src/kernels/sum.cpp", "src/deeper.py", "own/helper.py", "own/conftest.py")
    for changed in (*inputs, "src/core/data.py"):
        with (checkout.folder / changed).open("a") as file:
            file.write("\n")
        assert "3 passed" in checkout.check(), changed
    (checkout.folder / "src" / "kernels" / "new.h").write_text("")
    assert "3 passed" in checkout.check("-n2")
    (checkout.folder / "src" / "other.py").write_text("NUMBER = 2\n")
    (checkout.folder / "src" / "core" / "decisions.py").write_text("NUMBER = 2\n")
    assert PROVEN in checkout.check()


def test_tests_that_are_asked_for_run(checkout: Checkout) -> None:
    assert "3 passed" in checkout.check()
    assert "3 passed" in checkout.check("--all")
    assert "2 passed" in checkout.check("own/test_kernels.py")


def test_only_a_whole_run_that_passes_proves(checkout: Checkout) -> None:
    assert "1 failed, 2 passed" in checkout.check(FAILS="1")
    assert "1 passed, 2 skipped" in checkout.check(SKIPS="1")
    assert "2 passed" in checkout.check("-k", "test_all or 1")
    assert "1 passed" in checkout.check("own/test_kernels.py::test_sum[1]")
    assert not checkout.list.exists()
    assert "3 passed" in checkout.check()
    proof = json.loads(checkout.list.read_text())["own/test_kernels.py"]
    assert proof["inputs"] and proof["tools"]["python"]


def test_without_git_everything_runs(checkout: Checkout) -> None:
    assert "3 passed" in checkout.check()
    (checkout.folder / ".git").rename(checkout.folder / "no-git")
    assert "3 passed" in checkout.check(GIT_CEILING_DIRECTORIES=str(checkout.folder.parent))
