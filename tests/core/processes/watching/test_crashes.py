"""Which ends of a process are its own fault."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tokenmill.core.processes.watching import crashes
from tokenmill.core.processes.watching.crashes import is_crash, num_oom_kills


def test_a_fault_and_an_end_by_itself_are_crashes_and_signals_of_others_are_not() -> None:
    now = num_oom_kills()
    faults = (None, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
    assert all(is_crash(fault, now) for fault in faults)
    others = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    assert not any(is_crash(number, now) for number in others)


def test_a_kill_counts_if_the_system_has_killed_for_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vmstat = tmp_path / "vmstat"
    monkeypatch.setattr(crashes, "_VMSTAT", vmstat)
    assert num_oom_kills() == 0
    vmstat.write_text("nr_free_pages 5\noom_kill 7\nthp_split 1\n")
    assert num_oom_kills() == 7
    assert not is_crash(signal.SIGKILL, 7)
    assert is_crash(signal.SIGKILL, 6)
