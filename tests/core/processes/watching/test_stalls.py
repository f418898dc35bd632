"""A stall grows with the time of the checks, less the time that a process waited for a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tokenmill.core.processes.watching.cpu_waits import ThreadTimes, family_times
from tokenmill.core.processes.watching.stalls import MAX_DISK, MAX_GROWTH, Stall, _waits_for_disk

ENGINE, COMPILER = 100, 200
Times = Mapping[int, Mapping[int, ThreadTimes]]


class Machine:
    """Checks every 0.1 seconds a process whose threads wait for CPUs."""

    def __init__(self, first_look: float = 0.0) -> None:
        self.now = 1000.0
        self.waiting = [0.0, 0.0]
        self.waits_for_disk = False
        self.compiled: float | None = None
        """CPU seconds of a compiler, if one runs."""
        self.num_looks = 0
        self.stall = Stall(ENGINE, self._times, first_look=first_look)

    def _times(self, pid: int) -> Times:
        assert pid == ENGINE
        self.num_looks += 1
        threads = enumerate(self.waiting)
        times: dict[int, Mapping[int, ThreadTimes]] = {
            ENGINE: {tid: ThreadTimes(running=0.0, waiting=seconds) for tid, seconds in threads}
        }
        if self.waits_for_disk:
            disk = ThreadTimes(running=0.0, waiting=0.0, waits_for_disk=True)
            times[ENGINE] = {**times[ENGINE], 2: disk}
        if self.compiled is not None:
            times[COMPILER] = {0: ThreadTimes(running=self.compiled, waiting=0.0)}
        return times

    def check(self, seconds: float, *, waits: tuple[float, float] = (0.0, 0.0)) -> float:
        """Check for some seconds; `waits`: the fraction of it that each thread waits."""
        for _ in range(round(seconds / 0.1)):
            self.now += 0.1
            self.waiting = [t + 0.1 * part for t, part in zip(self.waiting, waits, strict=True)]
            self.stall.check(self.now, "the same")
        return self.stall.seconds


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.stall.check(machine.now, "the same")
    return machine


def test_a_process_that_sleeps_or_computes_stalls(machine: Machine) -> None:
    assert machine.check(5.0) == pytest.approx(5.0)


def test_time_in_which_a_thread_waits_for_a_cpu_is_not_a_stall(machine: Machine) -> None:
    assert machine.check(10.0, waits=(0.9, 0.2)) == pytest.approx(1.0, abs=0.2)


def test_time_in_which_a_thread_waits_for_a_disk_is_not_a_stall_for_a_minute(
    machine: Machine,
) -> None:
    machine.waits_for_disk = True
    assert machine.check(MAX_DISK) < 1.0
    assert machine.check(10.0) == pytest.approx(10.0, abs=1.0)
    machine.waits_for_disk = False
    assert machine.check(5.0) == pytest.approx(15.0, abs=1.0)


def test_a_thread_that_no_signal_wakes_waits_for_a_disk(tmp_path: Path) -> None:
    """As one that starts a process, until that process has opened its files."""
    fifo = tmp_path / "never written"
    os.mkfifo(fifo)
    code = (
        "import os, sys; stdin = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0); "
        "os.posix_spawn('/bin/true', ['true'], os.environ, file_actions=[stdin])"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(fifo)]) as waiting:
        end = time.monotonic() + 60
        while not _waits_for_disk(family_times(waiting.pid)):
            assert time.monotonic() < end
            time.sleep(0.02)
        fifo.open("w").close()
    assert waiting.returncode == 0


def test_threads_that_wait_in_turns_cannot_hide_a_hang(machine: Machine) -> None:
    for _ in range(10):
        machine.check(1.0, waits=(1.0, 0.0))
        machine.check(1.0, waits=(0.0, 1.0))
    assert machine.stall.seconds == pytest.approx(10.0, abs=0.2)


def test_progress_and_idleness_end_a_stall(machine: Machine) -> None:
    machine.check(5.0)
    assert machine.stall.check(machine.now + 0.1, "another") == 0.0
    for _ in range(50):
        machine.now += 0.1
        assert machine.stall.check(machine.now, None) == 0.0


def test_the_times_of_threads_are_not_read_between_regular_signs_of_life() -> None:
    machine = Machine(first_look=0.3)
    for beat in range(100):
        machine.check(0.2)
        machine.stall.check(machine.now, beat)
    assert machine.num_looks == 0
    assert machine.check(10.0, waits=(1.0, 0.0)) == pytest.approx(0.3, abs=0.2)


def test_a_pause_of_the_machine_counts_as_one_short_check(machine: Machine) -> None:
    before = machine.check(1.0)
    assert machine.stall.check(machine.now + 100.0, "the same") == before + MAX_GROWTH


def test_a_compiler_that_computes_is_progress_and_one_that_hangs_is_not(machine: Machine) -> None:
    machine.check(1.0)
    machine.compiled = 0.0
    for _ in range(100):
        machine.compiled += 0.02
        assert machine.check(0.1) < 0.7
    assert machine.check(3.0) == pytest.approx(3.0, abs=0.2)


def test_a_process_on_another_machine_stalls_by_the_clock() -> None:
    stall = Stall(None)
    for check in range(31):
        stall.check(check / 10, "the same")
    assert stall.seconds == pytest.approx(3.0)


def test_a_process_that_has_ended_has_no_times() -> None:
    assert not family_times(2**22 + 1)[2**22 + 1]
