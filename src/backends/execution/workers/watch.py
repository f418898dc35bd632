"""A thread that watches workers: it forwards their logs, and detects ends and hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ....core.errors import DeviceError
from ....core.log import get_logger
from ....core.processes.watching.stalls import Stall

CHECK_SECONDS = 0.1
"""Time between two checks of the workers."""
SILENCE_SECONDS = 1.5
"""A worker without a sign of life for as long hangs. In this time a worker process gives 15 signs,
and a Ray actor 6. Time in which the process waits for a CPU does not count, see `Stall`."""
FIRST_LOOK = 0.3
"""Seconds of silence before which nobody asks why: a Ray actor gives a sign of life before."""
log = get_logger("worker")


class Watched(Protocol):
    """The engine's side of one worker."""

    @property
    def rank(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def place(self) -> str:
        """The worker's place, for messages: " on 10.0.0.2"; "" on this machine."""
        ...

    @property
    def local_pid(self) -> int | None:
        """`pid`, if the worker is on this machine."""
        ...

    @property
    def is_alive(self) -> bool: ...
    @property
    def num_beats(self) -> int:
        """Number of the worker's signs of life."""
        ...

    def receive_logs(self) -> None:
        """Handle the log records that have arrived. Does not wait."""
        ...

    @property
    def ended_from_outside(self) -> bool:
        """Whether the worker has ended, and nothing that it computed is the cause."""
        ...

    def describe_end(self) -> str:
        """Return how the worker ended, for example "killed by SIGSEGV"."""
        ...

    def kill(self) -> None:
        """End the worker at once. Does not wait. Safe to call twice, and from any thread."""
        ...

    def close(self) -> None:
        """Wait for the end of a killed worker, and free what belongs to it. Safe to call twice."""
        ...


class Watch:
    """Kills all workers when one of them ends or hangs: without it the others cannot compute."""

    def __init__(
        self,
        links: Sequence[Watched],
        wait_for_logs: Callable[[float], Sequence[Watched]],
        find_lost_machine: Callable[[], tuple[Watched, str] | None] = lambda: None,
    ) -> None:
        """`wait_for_logs`: waits up to some seconds for workers to receive logs from.
        `find_lost_machine`: called when a worker fails; returns a worker whose machine is lost,
        and how."""
        self.failure: str | None = None
        """Why the workers were killed."""
        self._is_from_outside = False
        self._links, self._wait_for_logs = links, wait_for_logs
        self._find_lost_machine = find_lost_machine
        self._silences = [Stall(link.local_pid, first_look=FIRST_LOOK) for link in links]
        self._lock = threading.Lock()
        """Held while workers are killed and their logs are read."""
        self._deciding = threading.Lock()
        """Held while `failure` is decided, which no call into a lost cluster may delay."""
        self._is_closed = threading.Event()
        self._expects_beats = False
        self._thread = threading.Thread(target=self._run, name="tokenmill-workers", daemon=True)
        self._thread.start()

    def expect_beats(self) -> None:
        """From now on, treat a silent worker as hanging. Before, it may be loading."""
        self._expects_beats = True

    def error(self) -> DeviceError:
        """The error of the steps of killed workers."""
        reason = self.failure or "the engine has ended its workers"
        return DeviceError(reason, from_outside=self._is_from_outside)

    def fail(self, link: Watched, reason: str) -> DeviceError:
        """Let the thread kill all workers. Returns the error of the first call.

        Nobody waits for the thread: calls into a lost cluster may take long.
        """
        with self._deciding:
            if self.failure is not None or self._is_closed.is_set():
                return self.error()
            if lost := self._find_lost_machine():
                link, failure = lost
            else:
                failure = f"worker {link.rank}{link.place} {reason}"
            self._is_from_outside = lost is not None or link.ended_from_outside
            self.failure = failure
            log.error("worker_lost", rank=link.rank, pid=link.pid, reason=failure)
        return self.error()

    def close(self) -> None:
        """End all workers, and this thread. Safe to call twice."""
        with self._lock:
            self._is_closed.set()
            self._kill_all()
        self._thread.join()

    def _kill_all(self) -> None:
        for link in self._links:
            link.kill()
        for link in self._links:  # only now: the end of a process with much memory takes a second
            link.close()

    def _run(self) -> None:
        next_check = time.monotonic()
        while not self._is_closed.is_set() and self.failure is None:
            self._receive_logs(max(0.0, next_check - time.monotonic()))
            if time.monotonic() >= next_check:
                self._check()
                next_check = time.monotonic() + CHECK_SECONDS
        if self.failure is not None:
            self._end_workers()

    def _end_workers(self) -> None:
        with self._lock:
            self._read_logs(self._links)  # the last records say most about the cause
            self._kill_all()

    def _receive_logs(self, seconds: float) -> None:
        links = self._wait_for_logs(seconds)
        with self._lock:
            self._read_logs(links)

    def _read_logs(self, links: Iterable[Watched]) -> None:
        for link in links:
            link.receive_logs()

    def _check(self) -> None:
        now = time.monotonic()
        for link, silence in zip(self._links, self._silences, strict=True):
            if not link.is_alive:
                self.fail(link, link.describe_end())
            elif self._expects_beats and silence.check(now, link.num_beats) > SILENCE_SECONDS:
                self.fail(link, f"hangs: no sign of life for {SILENCE_SECONDS} seconds")
