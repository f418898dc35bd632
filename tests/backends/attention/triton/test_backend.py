"""TritonAttention, wherever triton is installed: interpreted here, on the GPU by tests/gpu."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

INTERPRETED = Path(__file__).with_name("interpreted.py")


@pytest.mark.check
@pytest.mark.depends_on("tests/backends/attention/triton/interpreted.py")
@pytest.mark.skipif(find_spec("triton") is None, reason="the package triton is not installed")
def test_the_interpreted_kernels_equal_a_naive_float64_computation() -> None:
    """All tests of interpreted.py, in a process where triton interprets its kernels."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--maxfail=3",
            "-p",
            "no:cacheprovider",
            INTERPRETED,
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=INTERPRETED.parents[4],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
