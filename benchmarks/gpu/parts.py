"""Programs with a time limit, each in processes of its own: a crash or a hang ends one, not all."""

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
"""Characters of what a part printed last that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A program to run."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a part ended."""

    name: str
    status: str
    """ok, failed (it said so itself, with an exit status), crashed (by a signal), timed out or not
    begun."""
    exit_status: int
    seconds: float
    tail: str

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"


class Deadline:
    """The moment by which everything has to be over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds; never negative."""
        return max(0.0, self._end - time.monotonic())

    def part(self, share: float) -> Deadline:
        """An earlier one, after this share of the time that is left."""
        return Deadline(self.left() * share)


_running: set[subprocess.Popen[bytes]] = set()


def run(part: Part, folder: Path, deadline: Deadline) -> Ended:
    """Run it in `folder`; at the deadline it is killed, with all that it started.

    What it prints goes to a file, so that nobody waits for a full pipe.
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
    """Several at a time; `done` hears of each when it has ended, on the caller's thread.

    `rest` says what is left of one that has ended: that runs next, as if it were still the same.
    """
    with ThreadPoolExecutor(max(1, at_once)) as pool:
        jobs = [pool.submit(_run_with_rest, part, folder, deadline, rest) for part in parts]
        for job in as_completed(jobs):
            done(job.result())


def _run_with_rest(
    part: Part, folder: Path, deadline: Deadline, rest: Callable[[Ended], Part | None]
) -> Ended:
    """How the last one ended; well only if the first one did."""
    first = last = run(part, folder, deadline)
    seconds = first.seconds
    while deadline.left() > 0 and (left := rest(last)) is not None:
        last = run(left, folder, deadline)
        seconds += last.seconds
    return replace(first if last.is_ok else last, seconds=round(seconds, 1))


def not_begun(name: str) -> Ended:
    """Of a part for which no time was left."""
    tail = "no time was left"
    return Ended(name=name, status="not begun", exit_status=0, seconds=0.0, tail=tail)


def kill_running() -> None:
    """Whatever still runs, before this program ends early."""
    for process in list(_running):
        _kill_all(process)


def _status(returncode: int) -> str:
    if returncode == 0:
        return "ok"
    return "crashed" if returncode < 0 or returncode >= 128 else "failed"


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """The part and whatever it left running. A process that hangs in the driver may outlive even
    this; nobody waits for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.returncode = -signal.SIGKILL
    _running.discard(process)
