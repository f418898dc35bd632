"""The whole check, rehearsed on the CPU with few and small parts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bundle import REPOSITORY


def command(output: Path, *flags: str) -> list[str]:
    """Without a bundle: what is installed here is checked."""
    program = str(REPOSITORY / "benchmarks" / "gpu" / "check.py")
    given = ["--device", "cpu", "--output", str(output), "--bundle", str(output / "none")]
    return [sys.executable, program, *given, *flags]


def check(output: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(output, *flags), capture_output=True, text=True, check=False)


@pytest.mark.check
def test_checks_times_and_writes_both_reports(tmp_path: Path) -> None:
    select = "one-token or only_the_window or chunked-swap-cached-starved"
    done = check(tmp_path, "--backends", "torch", "--contenders", "torch-sdpa", "--select", select)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu_check.json").read_text(encoding="utf-8"))
    assert found["is_complete"] and found["rehearsal"]
    outcomes = {c["part"]: {t["outcome"] for t in c["tests"]} for c in found["checks"]}
    assert outcomes.keys() == {"attention", "conformance", "engine"}
    assert "passed" in outcomes["attention"] and "failed" not in outcomes["engine"]
    assert {row["workload"] for row in found["kernels"]} >= {"2 x 40", "prompt 30"}
    report = (tmp_path / "gpu_check.md").read_text(encoding="utf-8")
    assert "A rehearsal on the CPU" in report and "| torch | attention |" in report


@pytest.mark.check
def test_a_check_that_fails_fails_the_whole(tmp_path: Path) -> None:
    """A backend that does not exist."""
    flags = ("--backends", "no-such", "--contenders", "--select", "one-token")
    done = check(tmp_path, *flags)
    assert done.returncode == 1, done.stdout + done.stderr
    report = (tmp_path / "gpu_check.md").read_text(encoding="utf-8")
    assert "no-such attention" in report and "FAILED" in report


def test_without_time_nothing_is_checked(tmp_path: Path) -> None:
    done = check(tmp_path, "--deadline", "0")
    assert done.returncode == 2, done.stdout + done.stderr


def test_ended_early_it_ends_what_it_started_and_leaves_a_report(tmp_path: Path) -> None:
    started = command(tmp_path, "--backends", "torch", "--contenders")
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not (tmp_path / "gpu_check.md").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said = process.stdout.read()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert "ended early" in said
    assert "CUT OFF" in (tmp_path / "gpu_check.md").read_text(encoding="utf-8")
