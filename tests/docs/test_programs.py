"""The programs of the pages on the library run as they are."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from .pages import ROOT

PAGES = ("docs/library.md", "docs/serving/structured-output.md")
PROGRAMS = [
    code
    for page in PAGES
    for code in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.DOTALL)
    if "lifespan" not in code  # these are parts of web applications, see examples/
]


@pytest.mark.check
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
