"""Kinds: what a type checker finds in offers. test_new_kind.py shows what follows from a row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OFFERS = """
from tokenmill.plugin import Registry, kinds

class Right:
    def schedule(self, step: object) -> None: ...

class Wrong:
    def plan(self, step: object) -> None: ...

def offer(registry: Registry) -> None:
    registry.offer(kinds.SCHEDULER, "right", Right)
    registry.offer(kinds.SCHEDULER, "wrong", Wrong)
    registry.offer(kinds.SCHEDULAR, "right", Right)
"""


@pytest.mark.check  # without a cache, mypy reads the public module in 20 seconds
def test_a_type_checker_finds_a_provider_of_a_wrong_class_and_an_unknown_kind(
    tmp_path: Path,
) -> None:
    file = tmp_path / "offers.py"
    file.write_text(OFFERS)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(file)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert [line.partition(": error: ")[0].rpartition(":")[2] for line in printed.splitlines()] == [
        "12",
        "13",
        "Found 2 errors in 1 file (checked 1 source file)",
    ]
    assert 'incompatible type "type[Wrong]"; expected "Callable[..., Scheduler]"' in printed
