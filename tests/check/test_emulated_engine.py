"""The whole engine on CPUs that lack AVX-512."""

from __future__ import annotations

import os
import sys

import pytest

from tokenmill.backends.cpu.native.build import build_library, build_self_test
from tokenmill.core.interfaces import no_progress

from .emulation import RUN_SECONDS, WITHOUT_AVX512, x86

pytestmark = [
    pytest.mark.timeout(RUN_SECONDS + 100),
    pytest.mark.depends_on("src", "pyproject.toml", "plugins.toml", "Makefile"),  # the model's, too
]

PROMPT = "The capital of France is"


def test_a_cpu_without_avx512_answers() -> None:
    """It died at its first token: see the changelog."""
    emulator = x86(WITHOUT_AVX512)
    build_library("avx2", no_progress)
    build_self_test(no_progress)
    environment = {k: v for k, v in os.environ.items() if k != "TOKENMILL_CPU_ISA"}
    command = (sys.executable, "-m", "tokenmill", "generate", "--max-tokens", "2", PROMPT)
    done = emulator.run(*command, environment=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "Paris."
