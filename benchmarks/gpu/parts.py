"""Runs programs with a time limit, each in its own process: a crash or hang ends only one."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

TAIL = 3000
"""Number of characters to keep from the end of a part's output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A program to run."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The result of a part."""

    name: str
    status: str
    """ok, failed (by an exit status), crashed (by a signal), timed out, or not begun."""
    exit_status: int
    seconds: float
    tail: str

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"


class Deadline:
    """The time by which everything must end."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Remaining seconds, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def part(self, share: float) -> Deadline:
        """An earlier deadline, after this fraction of the remaining time."""
        return Deadline(self.left() * share)


_running: set[subprocess.Popen[bytes]] = set()


def run(part: Part, folder: Path, deadline: Deadline) -> Ended:
    """Run a part in `folder`. At the deadline it is killed, with all processes that it started.

    Its output goes to a file, because a full pipe would block it.
    """
    if deadline.left() == 0:
        return not_begun(part.name)
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            part.command,
            cwd=folder,
            env=dict(part.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _running.add(process)
        try:
            process.wait(timeout=deadline.left())
            status = _status(process.returncode)
        except subprocess.TimeoutExpired:
            status = "timed out"
        finally:
            _kill_all(process)
        output.seek(0, os.SEEK_END)
        output.seek(max(0, output.tell() - TAIL))
        tail = output.read().decode(errors="replace").strip()
    return Ended(
        name=part.name,
        status=status,
        exit_status=process.returncode,
        seconds=round(time.monotonic() - started, 1),
        tail=tail,
    )


def run_all(
    parts: Sequence[Part],
    folder: Path,
    deadline: Deadline,
    at_once: int,
    done: Callable[[Ended], None],
    rest: Callable[[Ended], Part | None] = lambda ended: None,
) -> None:
    """Run parts, `at_once` in parallel. `done` is called with each result, on the caller's thread.

    `rest` may return a part with the unfinished rest of one that ended. It runs next, and counts as
    the same part.
    """
    with ThreadPoolExecutor(max(1, at_once)) as pool:
        jobs = [pool.submit(_run_with_rest, part, folder, deadline, rest) for part in parts]
        for job in as_completed(jobs):
            done(job.result())


def _run_with_rest(
    part: Part, folder: Path, deadline: Deadline, rest: Callable[[Ended], Part | None]
) -> Ended:
    """Run a part and its rests. The result is the last one's, or the first one's if that is ok."""
    first = last = run(part, folder, deadline)
    seconds = first.seconds
    while deadline.left() > 0 and (left := rest(last)) is not None:
        last = run(left, folder, deadline)
        seconds += last.seconds
    return replace(first if last.is_ok else last, seconds=round(seconds, 1))


def not_begun(name: str) -> Ended:
    """The result of a part for which no time was left."""
    tail = "no time was left"
    return Ended(name=name, status="not begun", exit_status=0, seconds=0.0, tail=tail)


def kill_running() -> None:
    """Kill all running parts, before this program ends early."""
    for process in list(_running):
        _kill_all(process)


def _status(returncode: int) -> str:
    if returncode == 0:
        return "ok"
    return "crashed" if returncode < 0 or returncode >= 128 else "failed"


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a part and all processes that it left. A process that hangs in the driver may survive
    this, so the wait is limited."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.returncode = -signal.SIGKILL
    _running.discard(process)
