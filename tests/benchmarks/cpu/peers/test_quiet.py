"""Whose CPU time is whose."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from quiet import Reading, foreign_share, read_cpu

BURN = "import time\nwhile time.process_time() < 0.3: pass"


def test_what_nobody_measured_took_is_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiet.psutil.cpu_count", lambda: 2)
    before = Reading(machine=100.0, measured=10.0)

    assert foreign_share(before, Reading(machine=120.0, measured=28.0), 10.0) == 0.1


def test_rounding_of_the_kernels_clocks_is_not_negative_time() -> None:
    before = Reading(machine=100.0, measured=10.0)

    assert foreign_share(before, Reading(machine=101.0, measured=11.01), 1.0) == 0.0


def test_children_count_as_measured_also_after_their_end() -> None:
    before = read_cpu(os.getpid())
    subprocess.run([sys.executable, "-c", BURN], check=True)
    after = read_cpu(os.getpid())

    assert after.measured - before.measured >= 0.25
    assert after.machine - before.machine >= 0.25


def test_grandchildren_that_still_run_count_as_measured() -> None:
    child = f"""
import subprocess, sys
inner = subprocess.Popen([sys.executable, "-c", {BURN!r} + "\\nprint(1, flush=True)\\ninput()"])
inner.wait()
"""
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        assert read_cpu(process.pid).measured >= 0.25
        process.communicate(b"\n")


def test_a_process_that_is_gone_took_nothing() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()

    assert read_cpu(done.pid).measured == 0.0
