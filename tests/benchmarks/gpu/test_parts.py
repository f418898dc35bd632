"""Programs that crash, hang, or leave others behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from parts import TAIL, Deadline, Ended, Part, kill_running, run, run_all

FOREVER = "import time; time.sleep(600)"


def part(code: str, name: str = "part") -> Part:
    return Part(name=name, command=[sys.executable, "-c", code], environment=dict(os.environ))


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("print('all is well')", "ok"),
        ("import sys; sys.exit(3)", "failed"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed"),
    ],
)
def test_says_how_a_program_ended(code: str, status: str, tmp_path: Path) -> None:
    assert run(part(code), tmp_path, Deadline(60)).status == status


def test_keeps_the_end_of_what_was_printed(tmp_path: Path) -> None:
    code = "import sys; print('x' * 100_000); print('the end', file=sys.stderr)"
    tail = run(part(code), tmp_path, Deadline(60)).tail
    assert tail.endswith("the end") and len(tail) <= TAIL


def test_a_hanging_program_and_what_it_started_are_killed(tmp_path: Path) -> None:
    """Also one that stays behind with the pipe open."""
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {FOREVER!r}])\n"
        "open('child', 'w').write(str(child.pid))\n"
        "child.wait()"
    )
    ended = run(part(code), tmp_path, Deadline(3))
    assert ended.status == "timed out"
    child = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
    for _ in range(100):
        if not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the child lives")


def test_all_of_several_are_heard_of(tmp_path: Path) -> None:
    """One that does not end keeps nobody's place for longer than the deadline."""
    heard: list[Ended] = []
    codes = {"a": "pass", "b": FOREVER, "c": "raise SystemExit(1)", "d": "pass"}
    parts = [part(code, name) for name, code in codes.items()]
    run_all(parts, tmp_path, Deadline(4), 2, heard.append)
    assert {ended.name: ended.status for ended in heard} == {
        "a": "ok",
        "b": "timed out",
        "c": "failed",
        "d": "ok",
    }


def test_what_is_left_of_a_part_runs_next(tmp_path: Path) -> None:
    """And what failed before is not forgotten."""
    heard: list[Ended] = []
    left = [part("print('second'); raise SystemExit(0)")]
    first = part("print('first'); raise SystemExit(3)")
    run_all(
        [first], tmp_path, Deadline(60), 1, heard.append, lambda e: left.pop() if left else None
    )
    assert [(ended.status, ended.tail) for ended in heard] == [("failed", "first")]
    assert not left


def test_without_time_a_part_is_not_begun(tmp_path: Path) -> None:
    assert run(part("open('begun', 'w')"), tmp_path, Deadline(0)).status == "not begun"
    assert not (tmp_path / "begun").exists()


def test_what_runs_can_be_ended_early(tmp_path: Path) -> None:
    heard: list[Ended] = []
    code = f"open('begun', 'w').close(); {FOREVER}"

    def kill_when_begun(ended: Ended) -> None:
        heard.append(ended)
        if ended.name == "watch":
            kill_running()

    watch = "import pathlib, time\nwhile not pathlib.Path('begun').exists(): time.sleep(0.02)"
    parts = [part(code, "hang"), part(watch, "watch")]
    run_all(parts, tmp_path, Deadline(60), 2, kill_when_begun)
    assert {ended.name: ended.status for ended in heard} == {"watch": "ok", "hang": "crashed"}


def test_a_share_of_the_time_is_an_earlier_deadline() -> None:
    whole = Deadline(100)
    assert 0 < whole.part(0.3).left() <= 30 < whole.left()
    assert Deadline(-1).left() == 0
